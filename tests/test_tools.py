"The tools behind `make test`, `make readme` and `make docs`, tried on toy repositories: a check that finds nothing proves little."
import json, os, shutil, subprocess, sys
from pathlib import Path
import pytest
from conftest import ROOT
import check_export, render_readme
from repo import read_nb

def cell(source, kind='code', *, id, **kw):
    "A notebook cell."
    c = dict(cell_type=kind, id=id, metadata={}, source=source)
    return {**c, **(dict(execution_count=None, outputs=[]) if kind == 'code' else {}), **kw}

def write_nb(path, *cells):
    "Write `cells` as a notebook."
    path.parent.mkdir(parents=True, exist_ok=True)
    nb = dict(cells=list(cells), metadata=dict(kernelspec=dict(display_name='python3', language='python', name='python3')), nbformat=4, nbformat_minor=5)
    path.write_text(json.dumps(nb, indent=1))

def module_nb(path, name, *code):
    "Write a module notebook that exports `code`."
    write_nb(path, cell(f'#| default_exp {name}', id='a0'), cell(f'# {name}\n\n> a toy', 'markdown', id='a1'),
             *(cell(o, id=f'b{i}') for i, o in enumerate(code)))

@pytest.fixture
def toy(tmp_path):
    "A repository with one module notebook, exported."
    shutil.copytree(ROOT/'tools', tmp_path/'tools', ignore=shutil.ignore_patterns('__pycache__'))
    shutil.copy2(ROOT/'settings.ini', tmp_path)
    module_nb(tmp_path/'nbs'/'00_one.ipynb', 'one', '#| export\ndef one():\n    "One."\n    return 1', 'assert one() == 1')
    write_nb(tmp_path/'nbs'/'index.ipynb', cell('# toy\n\n> a toy', 'markdown', id='c0'))
    fresh = check_export.fresh_export(tmp_path/'fresh', tmp_path)
    shutil.move(fresh/'lrpt_nb', tmp_path/'lrpt_nb')
    shutil.move(fresh/'nbs'/'nbdev.yml', tmp_path/'nbs'/'nbdev.yml')
    shutil.rmtree(tmp_path/'fresh')
    return tmp_path

def test_export_check(toy):
    assert check_export.differences(toy) == []
    one = toy/'lrpt_nb'/'one.py'
    good = one.read_text()
    one.write_text(good.replace('return 1', 'return 2'))
    (toy/'lrpt_nb'/'gone.py').write_text('')
    (toy/'nbs'/'nbdev.yml').unlink()
    found = check_export.differences(toy)
    assert [o.split(':')[0] for o in found] == ['lrpt_nb/gone.py', 'lrpt_nb/one.py', 'nbs/nbdev.yml']
    one.unlink()
    assert any('one.py: missing' in o for o in check_export.differences(toy))

def test_export_check_reports_a_broken_notebook(toy):
    (toy/'nbs'/'00_one.ipynb').write_text('{')
    with pytest.raises(RuntimeError, match='export failed'): check_export.differences(toy)

def test_readme(toy):
    stream = dict(output_type='stream', name='stdout', text=['a\n', 'b\n'])
    result = dict(output_type='execute_result', data={'text/plain': ['3'], 'text/html': ['<b>3</b>']}, metadata={}, execution_count=None)
    write_nb(toy/'nbs'/'index.ipynb',
        cell('---\ntitle: "Toy"\ndescription: of a kind\n---', 'raw', id='d0'),
        cell('![p](../results/p.png) [t](tutorials/01.ipynb#x) [w](https://a.example/../b) <img src="../q.png"> `[c](../c)`\n\n```\n[d](../d)\n```', 'markdown', id='d1'),
        cell('#| hide\nimport os', id='d2'), cell('#| eval: false\nprint(1)', outputs=[stream], id='d3'),
        cell('#| echo: false\n1 + 2', outputs=[result], id='d4'), cell('# a comment\nx', id='d5'))
    assert render_readme.render(toy) == '''<!-- Rendered from nbs/index.ipynb by tools/render_readme.py: edit the notebook, then run `make readme`. -->

# Toy

> of a kind

![p](results/p.png) [t](nbs/tutorials/01.ipynb#x) [w](https://a.example/../b) <img src="q.png"> `[c](../c)`

```
[d](../d)
```

```python
print(1)
```

```text
a
b
```

```text
3
```

```python
# a comment
x
```
'''
    assert 'rendered' in render_readme.difference(toy)
    (toy/'README.md').write_text(render_readme.render(toy))
    assert render_readme.difference(toy) == ''

@pytest.mark.parametrize('out, msg', [
    (dict(output_type='error', ename='E', evalue='v', traceback=[]), 'error'),
    (dict(output_type='display_data', data={'image/png': 'xx', 'text/plain': '<Figure>'}, metadata={}), 'picture')])
def test_readme_refuses(toy, out, msg):
    write_nb(toy/'nbs'/'index.ipynb', cell('1', outputs=[out], id='d0'))
    with pytest.raises(ValueError, match=msg): render_readme.render(toy)

def test_readme_refuses_links_out_of_the_repository(toy):
    write_nb(toy/'nbs'/'index.ipynb', cell('[x](../../x)', 'markdown', id='d0'))
    with pytest.raises(ValueError, match='out of the repository'): render_readme.render(toy)

def test_execute(toy):
    path = toy/'nbs'/'tutorials'/'01_x.ipynb'
    old = dict(output_type='stream', name='stdout', text=['kept\n'])
    write_nb(path, cell('print("step 1\\rstep 2"); print("\\x1b[31mred\\x1b[0m")\nimport os, sys, tempfile, warnings', id='e0'),
        cell('from tqdm import tqdm\nfor _ in tqdm(range(3)): pass', id='e1'),
        cell('print(os.getcwd(), sys.executable, tempfile.mkdtemp()); print(__import__("lrpt_nb").__file__)', id='e2'),
        cell('#| cuda\n1/0', outputs=[old], id='e3'),
        cell('from fastprogress import master_bar, progress_bar\nmb = master_bar(range(1))\nmb.write(["a", "bb"], table=True)\n'
             'for _ in mb:\n    for _ in progress_bar(range(2), parent=mb): pass\n    mb.write(["1", "2.5"], table=True)', id='e4'),
        cell('import matplotlib.pyplot as plt\nplt.plot([1, 2]);', id='e5'),
        cell('object()', id='e6'), cell('warnings.warn("mine")', id='e7'))
    # the copy's own tool, so that its root is the toy
    res = subprocess.run([sys.executable, 'tools/execute_nbs.py'], cwd=toy, capture_output=True, text=True)
    assert res.returncode == 0, res.stdout + res.stderr
    outs = {c['id']: c.get('outputs', []) for c in read_nb(path)['cells']}
    shown = lambda i: ''.join(''.join(o['text']) for o in outs[i])
    assert shown('e0') == 'step 2\nred\n' and outs['e1'] == [] and shown('e3') == 'kept\n'
    assert shown('e2').split() == ['./nbs/tutorials', '.venv/bin/' + Path(sys.executable).name, 'TMP', './lrpt_nb/__init__.py']
    table, = outs['e4']
    assert ''.join(table['data']['text/plain']).split() == ['a', 'bb', '1', '2.5'] and 'style' not in ''.join(table['data']['text/html'])
    assert 'image/png' in outs['e5'][0]['data'] and ' at 0x' not in str(outs['e6'])
    assert 'UserWarning: mine' in shown('e7') and str(toy) not in path.read_text() and '/tmp/' not in path.read_text()
    # what nbdev_clean would leave
    before = path.read_text()
    clean = subprocess.run([sys.executable, '-c', 'from nbdev.clean import nbdev_clean; nbdev_clean.__wrapped__()'], cwd=toy, capture_output=True, text=True)
    assert clean.returncode == 0 and path.read_text() == before

def test_execute_leaves_a_failing_notebook_alone(toy):
    path = toy/'nbs'/'index.ipynb'
    write_nb(path, cell('print(1)', id='f0'), cell('1/0', id='f1'))
    before = path.read_text()
    res = subprocess.run([sys.executable, 'tools/execute_nbs.py', str(path)], cwd=toy, capture_output=True, text=True)
    assert res.returncode == 1 and 'ZeroDivisionError' in res.stdout and path.read_text() == before
    assert [o.name for o in path.parent.iterdir() if 'tmp' in o.name] == []

def test_run_tests_counts_and_goes_on(toy):
    "A failing check, notebook, test and fixture are all seen, counted, and end in a non-zero exit."
    shutil.copy2(ROOT/'pyproject.toml', toy)
    module_nb(toy/'nbs'/'10_two.ipynb', 'two', 'assert 1 == 2, "two is wrong"')
    write_nb(toy/'nbs'/'tutorials'/'01_x.ipynb', cell('#| slow\n1/0', id='g0'), cell('1', id='g1'))
    (toy/'tests').mkdir()
    (toy/'tests'/'test_notebooks.py').write_text('def test_a(): pass\ndef test_b(): assert 0, "check b"\n')
    (toy/'tests'/'test_x.py').write_text('import pytest\n@pytest.fixture\ndef bad(): 1/0\ndef test_c(): pass\ndef test_d(): assert 0\n'
                                         'def test_e(bad): pass\ndef test_f(): pytest.skip("why not")\n')
    run = lambda: subprocess.run([sys.executable, 'tools/run_tests.py'], cwd=toy, capture_output=True, text=True, env={**os.environ, 'PYTHONPATH': ''})
    res = run()
    # passed: test_a, 00_one, index, the tutorial, test_c; failed: test_b, 10_two, test_d, test_e
    assert res.stdout.splitlines()[-1] == '5 passed, 4 failed' and res.returncode == 1, res.stdout + res.stderr
    for o in 'two is wrong', 'check b', 'why not', 'FAILED  nbs/10_two.ipynb': assert o in res.stdout
    (toy/'nbs'/'10_two.ipynb').unlink()
    (toy/'tests'/'test_notebooks.py').write_text('def test_a(): pass\n')
    (toy/'tests'/'test_x.py').write_text('def test_c(): pass\n')
    res = run()
    assert res.stdout.splitlines()[-1] == '5 passed, 0 failed' and res.returncode == 0, res.stdout + res.stderr
    # a suite that dies or runs nothing has failed
    (toy/'tests'/'test_x.py').write_text('import os\ndef test_c(): os._exit(3)\n')
    (toy/'tests'/'test_notebooks.py').write_text('')
    res = run()
    assert res.stdout.splitlines()[-1] == '3 passed, 2 failed' and res.returncode == 1, res.stdout + res.stderr
