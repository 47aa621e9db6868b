"""The planted bugs of scripts/mutate_translation.py still fit the code that they are planted in."""

import runpy


def test_every_mutant_finds_its_place(checkout):
    mutants = runpy.run_path(str(checkout / "scripts" / "mutate_translation.py"))["MUTANTS"]
    assert len(mutants) >= 29
    assert len({mutant.name for mutant in mutants}) == len(mutants)
    for mutant in mutants:
        text = (checkout / "gflownet" / "translation" / f"{mutant.file}.py").read_text()
        assert text.count(mutant.old) == 1, mutant.name
        assert mutant.new != mutant.old
