"""The package as a user gets it: declared requirements, what importing loads, the wheel, and a clean installation.

The clean environment holds the run-time requirements alone, so also the newest fastai and fastcore, which the
development pins keep out of the environment that runs these tests."""
import ast, os, re, shutil, subprocess, sys, tempfile, zipfile
from configparser import ConfigParser
from pathlib import Path
import pytest
from conftest import ROOT
from lrpt_nb.scan import plugins as scan_plugins
from repo import copy_tree, default_exp, files, notebooks, read_nb, settings

cfg = settings()
lib = cfg['lib_path']
modules = sorted(filter(None, (default_exp(read_nb(ROOT/o)) for o in notebooks())))
plugins = {o.partition(':')[0].rpartition('.')[2] for o in scan_plugins.values()}     # imported when first wanted

def run(*cmd, **kw):
    "Run `cmd`, without this checkout on its path, and return its output; the output is the message when it fails."
    env = {k: v for k, v in os.environ.items() if k not in ('PYTHONPATH', 'PYTHONHOME', '__PYVENV_LAUNCHER__')}
    res = subprocess.run([str(o) for o in cmd], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, **kw)
    if res.returncode: pytest.fail(f'{" ".join(map(str, cmd))}\n{res.stdout[-6000:]}', pytrace=False)
    return res.stdout

# what is declared, and what importing does

def dists(key):
    "The distributions that setting `key` names, in lower case."
    return {re.match(r'[\w.-]+', o.strip())[0].lower() for o in cfg.get(key, '').splitlines() if o.strip()}

def test_imports_are_declared():
    "What a module imports when loaded is a requirement; what a function or a plug-in imports may come with an extra."
    run_time = dists('requirements')
    extras = {d for k in cfg if k.endswith('_requirements') and not k.startswith('dev_') for d in dists(k)}
    dist = {'sklearn': 'scikit-learn', 'PIL': 'pillow'}
    rows = []
    for f in sorted((ROOT/lib).glob('*.py')):
        tree = ast.parse(f.read_text(encoding='utf8'))
        lazy = {n for o in ast.walk(tree) if isinstance(o, (ast.FunctionDef, ast.Lambda)) for n in ast.walk(o)}
        for n in ast.walk(tree):
            if isinstance(n, ast.Import): names = [a.name for a in n.names]
            elif isinstance(n, ast.ImportFrom) and not n.level: names = [n.module]
            else: continue
            for top in {o.split('.')[0] for o in names} - set(sys.stdlib_module_names) - {lib}:
                if dist.get(top, top).lower() not in run_time | (extras if n in lazy or f.stem in plugins else set()):
                    rows.append(f'{f.name}:{n.lineno}: {top} is not in settings.ini')
    assert not rows, '\n'.join(rows)

@pytest.mark.parametrize('module', ['learner', 'compare'])
def test_import_loads_no_triton_no_datasets(module):
    if module not in modules: pytest.fail(f'there is no {lib}.{module}')
    code = f"import sys, {lib}.{module}; print([o for o in ('triton', 'numba', 'datasets', 'transformers', 'ray') if o in sys.modules])"
    res = subprocess.run([sys.executable, '-W', 'ignore', '-c', code], capture_output=True, text=True)
    assert res.returncode == 0, res.stderr
    assert res.stdout.strip() == '[]'

def test_no_machine_paths_or_registry_hosts():
    # put together from pieces, so that this file passes its own test
    paths = '|'.join(['home', 'root', 'work', 'Users'])
    hosts = '|'.join(a + r'\.' + b for a, b in [('pypi', 'org'), ('pythonhosted', 'org'), ('download.pytorch', 'org'),
                                               ('anaconda', '(?:org|com)'), ('npmjs', '(?:org|com)')])
    bad = re.compile(rf'(?<![\w.+=-])/(?:{paths})/\w|\b(?:{hosts})\b')
    rows = []
    for f in files():
        try: s = (ROOT/f).read_text(encoding='utf8')
        except UnicodeDecodeError: continue
        rows += [f'{f}:{i}: {bad.search(l)[0]}' for i, l in enumerate(s.splitlines(), 1) if bad.search(l)]
    assert not rows, '\n'.join(rows)

def test_version_stands_once():
    assert (ROOT/lib/'__init__.py').read_text().strip() == f'__version__ = "{cfg["version"]}"'

def test_nothing_large_or_built_is_tracked():
    rows = [str(f) for f in files() if f.suffix in {'.whl', '.pth', '.pkl', '.pyc', '.wav'} or '.ipynb_checkpoints' in f.parts]
    rows += [f'{f}: {s/2**20:.1f} MiB' for f in files() for s in [(ROOT/f).stat().st_size] if s > 2**21]
    assert not rows, '\n'.join(rows)

# the wheel and a clean environment

@pytest.fixture(scope='module')
def scratch(request):
    "A folder for these tests, several GB by the end, removed afterwards."
    d = Path(tempfile.mkdtemp(prefix=f'{lib}-clean-'))
    yield d
    # removing that much takes minutes on some disks: the other tests go on meanwhile, and an interrupted run does not stop it
    p = subprocess.Popen([sys.executable, '-c', 'import shutil, sys; shutil.rmtree(sys.argv[1], ignore_errors=True)', d],
                         start_new_session=True)
    request.config.add_cleanup(p.wait)

@pytest.fixture(scope='module')
def wheel(scratch):
    "The wheel, built from an sdist of a clean copy, so that the sdist is shown to be complete too."
    copy_tree(scratch/'copy')
    run(sys.executable, '-m', 'build', scratch/'copy', '--outdir', scratch/'dist', cwd=scratch)
    found = list((scratch/'dist').glob('*.whl'))
    assert len(found) == 1
    return found[0]

@pytest.fixture(scope='module')
def clean_python(scratch, wheel):
    "An interpreter with the wheel and its run-time requirements, nothing else."
    env = scratch/'env'
    run(sys.executable, '-m', 'venv', env)
    python = env/('Scripts/python.exe' if os.name == 'nt' else 'bin/python')
    run(python, '-m', 'pip', 'install', '-q', '--disable-pip-version-check', wheel, cwd=scratch)
    return python

@pytest.mark.install
def test_wheel_holds_every_module(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {f'{lib}/{o.replace(".", "/")}.py' for o in [*modules, '__init__', '_modidx']} <= set(names)
    strangers = [o for o in names if not o.startswith((f'{lib}/', f'{lib}-{cfg["version"]}.dist-info/'))]
    assert not strangers

@pytest.mark.install
def test_wheel_metadata(wheel):
    z = zipfile.ZipFile(wheel)
    info = f'{lib}-{cfg["version"]}.dist-info'
    entry = ConfigParser(delimiters=['='])
    entry.read_string(z.read(f'{info}/entry_points.txt').decode())
    assert dict(entry['nbdev']) == {lib: f'{lib}._modidx:d'}
    scripts = dict(o.split('=') for o in cfg['console_scripts'].split())
    assert dict(entry['console_scripts']) == scripts and {'lrpt_compare', 'lrpt_tasks'} <= set(scripts)
    meta = z.read(f'{info}/METADATA').decode()
    assert f'Requires-Python: >={cfg["min_python"]}' in meta and 'Apache-2.0' in meta
    assert re.search(r'^Requires-Dist: triton; platform_system == "Linux"$', meta, re.M)
    assert {'timeseries', 'lm', 'scale', 'cpu', 'dev'} == set(re.findall(r'^Provides-Extra: (\S+)', meta, re.M))
    assert (ROOT/'README.md').read_text(encoding='utf8').strip() in meta.replace('\r\n', '\n')
    assert any(o.endswith('LICENSE') for o in z.namelist())

@pytest.mark.install
def test_clean_environment_is_consistent(clean_python):
    assert 'No broken requirements' in run(clean_python, '-m', 'pip', 'check')
    # nothing of the development extra came along: its pins would hide what users meet
    found = run(clean_python, '-c', "import importlib.util as u; print([o for o in ('nbdev', 'execnb', 'pytest') if u.find_spec(o)])")
    assert found.strip() == '[]'

@pytest.mark.install
def test_every_module_imports(clean_python, scratch):
    code = f"import importlib; [importlib.import_module('{lib}.'+o) for o in {[o for o in modules if o not in plugins]}]; import {lib}; print({lib}.__file__)"
    where = run(clean_python, '-I', '-W', 'ignore', '-c', code, cwd=scratch).strip().splitlines()[-1]
    assert Path(where).is_relative_to(scratch/'env')

@pytest.mark.install
def test_scans_work_without_the_extra(clean_python, scratch):
    "A plug-in whose compiler is not installed says so, and the torch path takes its place without a word."
    code = f"""
import warnings, torch, {lib}.scan as s
warnings.simplefilter('error')
a = torch.rand(2, 9)
assert torch.allclose(s.linear_scan(a, a), s.scan_loop(a, a), atol=1e-6) and s.choose_backend('cpu') == 'tree'
try: import {lib}.scan_numba
except ModuleNotFoundError as e: print('no', e.name)
"""
    assert run(clean_python, '-I', '-c', code, cwd=scratch).split()[-2:] == ['no', 'numba']

@pytest.mark.install
@pytest.mark.parametrize('command', [o.split('=')[0] for o in cfg['console_scripts'].split()])
def test_commands_have_help(clean_python, scratch, command):
    assert 'usage' in run(clean_python.parent/command, '--help', cwd=scratch).lower()

@pytest.mark.install
def test_flags_keep_their_spelling(clean_python, scratch):
    "fastcore 1 and 2 spell flags differently; a command of ours takes both spellings with either."
    for flag in '--as_json', '--as-json':
        out = run(clean_python.parent/'lrpt_tasks', 'digits', flag, cwd=scratch)
        assert '"name": "digits"' in out

@pytest.mark.install
def test_smoke(clean_python, scratch):
    assert 'smoke ok' in run(clean_python, '-I', ROOT/'tests'/'smoke.py', cwd=scratch)
