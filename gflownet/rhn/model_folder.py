"""Files of a saved language model, and the check that a folder has them (no torch)."""

from __future__ import annotations

from pathlib import Path

from gflownet.errors import UserError

DESCRIPTION_NAME = "model.json"
WEIGHTS_NAME = "model.safetensors"


def check_model_folder(folder: Path) -> None:
    """Raise UserError for a folder without the files of a model."""
    missing = [name for name in (DESCRIPTION_NAME, WEIGHTS_NAME) if not (folder / name).is_file()]
    if missing:
        expected = f"expected a folder with {DESCRIPTION_NAME} and {WEIGHTS_NAME}"
        raise UserError(f"{folder}: {expected}, got {_content_of(folder, missing)}")


def _content_of(folder: Path, missing: list[str]) -> str:
    if folder.is_dir():
        hint = f"; did you mean {folder / 'model'}?" if (folder / "model" / DESCRIPTION_NAME).is_file() else ""
        return f"one without {' and '.join(missing)}{hint}"
    return "a file" if folder.exists() else "a name that does not exist"
