"""Configuration of Sphinx. `make docs` builds the pages of this folder; docs/sphinx_site adds what is generated."""

import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER.parent), str(FOLDER)]

import gflownet  # noqa: E402

project = "gflownet"
author = "the authors of gflownet"
version = release = gflownet.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_site"]
exclude_patterns = ["_build", "sphinx_site"]

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "gflownet"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
copybutton_exclude = ".linenos, .gp, .go"
