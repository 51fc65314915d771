"The README's example is run, letter for letter but for the number of epochs."
import re
from pathlib import Path

root = Path(__file__).parent.parent

def test_example_runs(tmp_path, monkeypatch):
    "The six lines train, predict, draw and export."
    readme = (root/'README.md').read_text()
    code = next(c for c in re.findall(r'```python\n(.*?)```', readme, re.S) if 'self_pretrain' in c)
    lines = [l for l in code.splitlines() if l.strip() and not l.startswith('from ')]
    assert len(lines) == 5 and 'self_pretrain(40)' in code and 'fit_one_cycle(40, 1e-3)' in code
    monkeypatch.chdir(tmp_path)
    space = {}
    exec(code.replace('self_pretrain(40)', 'self_pretrain(1)').replace('fit_one_cycle(40,', 'fit_one_cycle(1,'), space)
    assert len(space['learn'].pretrain_recorder.values) == 1 and len(space['learn'].recorder.values) == 1
    assert (tmp_path/'model.pkl').exists()

def test_first_screen():
    "What it is for, the picture of the demo's own run, the two commands, the example: in this order."
    readme = (root/'README.md').read_text()
    places = [readme.index(s) for s in ('pretrains a Transformer or a state-space model', '](results/digit_pairs/comparison.png)', 'make demo', 'make test', 'self_pretrain(40)')]
    assert places == sorted(places) and readme[:places[-1]].count('\n') < 45
