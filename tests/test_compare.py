"Comparisons in processes of their own: the command, resuming after every kind of ending, failures, locks, and what reads test rows when."
import json, os, signal, subprocess, sys, time
from pathlib import Path
import numpy as np
import pytest
from lrpt_nb.compare import Comparison, RunsFailed, compare, tune
from lrpt_nb.data import SeqDataset, seq_dls
from lrpt_nb.models import archs
from lrpt_nb.plan import plan_runs
from lrpt_nb.runs import settings_key, test_scores as scores_of
from lrpt_nb.tasks import load_task
from lrpt_nb.workers import RunLog, Watch, lock_folder, needs_this_process, run_all

TINY = dict(archs=['transformer'], epochs=2, pretrain_epochs=2, bs=32, size='tiny', frac=.1, precision='fp32', lr=1e-3)
ARGS = [f'--{k}={",".join(v) if isinstance(v, list) else v}' for k, v in TINY.items()]
needs_proc = pytest.mark.skipif(not Path(f'/proc/self/task/{os.getpid()}/children').exists(), reason='needs /proc to find processes')

def children_of(pid):
    "Process ids of the children that any thread of `pid` started."
    return [int(o) for f in Path(f'/proc/{pid}/task').glob('*/children') for o in f.read_text().split()]

@pytest.fixture
def command(in_tmp):
    "Start `lrpt_compare` with arguments, as its console script does, in an empty folder."
    (in_tmp/'lrpt_compare').write_text('import sys\nfrom lrpt_nb.compare import lrpt_compare\nsys.exit(lrpt_compare())\n')
    started = []
    def start(*args):
        started.append(subprocess.Popen([sys.executable, 'lrpt_compare', *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]
    yield start
    for p in started:
        if p.poll() is None: p.kill()
        p.communicate()

def finish(proc):
    "`(exit status, stdout, stderr)`."
    out, err = proc.communicate(timeout=900)
    return proc.returncode, out, err

def until(what, limit=300):
    "Wait for `what()` to be true, and give it."
    end = time.monotonic()+limit
    while time.monotonic() < end:
        if found := what(): return found
        time.sleep(.02)
    raise AssertionError('waited in vain')

def alive(pid):
    "Whether a process runs; a zombie does not."
    try: return Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()[0] != 'Z'
    except FileNotFoundError: return False

def lines(folder='runs/digits'): return (Path(folder)/'runs.jsonl').read_bytes().splitlines()
def n_lines(folder='runs/digits'): return len(lines(folder)) if (Path(folder)/'runs.jsonl').exists() else 0

def test_command(command, in_tmp):
    code, out, err = finish(command('digits', '--seeds=1', '--n_workers=2', *ARGS))
    assert code == 0, out + err
    folder = in_tmp/'runs'/'digits'
    assert sorted(o.name for o in folder.iterdir() if o.name[0] != '.') == ['comparison.png', 'grid.json', 'logs', 'report.html', 'runs.jsonl', 'table.md']
    rows = [json.loads(o) for o in lines()]
    assert sorted(r['init'] for r in rows) == ['masked', 'scratch'] and len({r['steps'] for r in rows}) == 1
    # progress with validation scores; the table, and the test scores in it, only after the last run
    progress, result = out.split('[2/2]')
    assert '[1/2]' in progress and 'masked − scratch' in result and 'report.html' in result and 'Caution: One seed only' in result
    assert all(f"{100*r['test']:.1f}" not in progress or abs(r['test']-r['valid']) < .0006 for r in rows)
    assert all(r['machine']['cpu'] and r['versions']['torch'] for r in rows)
    # a page without any other file
    page = (folder/'report.html').read_text()
    assert 'src="data:image/png;base64,' in page and 'http' not in page.replace('http-equiv', '')
    # the same call again makes nothing
    before, stamp = lines(), (folder/'runs.jsonl').stat().st_mtime_ns
    code, again, err = finish(command('digits', '--seeds=1', '--n_workers=2', *ARGS))
    assert code == 0 and '2 of 2 runs are in' in again and 'validation' not in again, again + err
    assert lines() == before and (folder/'runs.jsonl').stat().st_mtime_ns == stamp
    # and the run in this process is the run of that process
    c = compare('digits', seeds=1, n_workers=0, quiet=True, **TINY)
    assert {r['key']: r['test_scores'] for r in c.rows} == {r['key']: r['test_scores'] for r in rows}

def test_help(command):
    code, out, err = finish(command('--help'))
    assert code == 0
    for o in 'task archs inits seeds epochs pretrain_epochs budget frac labels n_workers out size bs precision lr pretrain_lr causal'.split():
        assert o in out, o

def test_bad_name(command, in_tmp):
    code, out, err = finish(command('digits', '--archs=transformer,nope'))
    assert code == 1 and 'Traceback' not in err and err.splitlines()[-1].startswith("lrpt_compare: arch='nope' is not known; accepted: "), err
    assert [o.name for o in in_tmp.iterdir()] == ['lrpt_compare']

@needs_proc
def test_interrupt_and_go_on(command):
    "kill -INT: children end, what is finished stays, the same call makes only the rest."
    args = ['digits', '--seeds=1', '--n_workers=1', *ARGS]
    proc = command(*args)
    until(lambda: n_lines() >= 1)
    children = until(lambda: children_of(proc.pid))
    proc.send_signal(signal.SIGINT)
    code, out, err = finish(proc)
    assert code == 130 and 'goes on from there' in out and 'Traceback' not in err, out + err
    until(lambda: not any(map(alive, children)))
    first = lines()
    assert len(first) == 1
    partial = Comparison.load('runs/digits')
    assert len(partial.rows) == len(first) and len(partial.missing) == 1
    code, out, err = finish(command(*args))
    assert code == 0 and '1 of 2 runs are in' in out, out + err
    assert lines()[:1] == first and len(lines()) == 2 and not Comparison.load('runs/digits').missing

@needs_proc
def test_killed_parent_and_torn_line(command):
    "kill -9: the child does not live on; a half-written row is skipped and made again."
    args = ['digits', '--seeds=1', '--n_workers=1', *ARGS]
    proc = command(*args)
    until(lambda: n_lines() == 1)
    children = until(lambda: children_of(proc.pid))
    proc.kill()
    until(lambda: not any(map(alive, children)))
    first, = lines()
    with open('runs/digits/runs.jsonl', 'ab') as f: f.write(first[:len(first)//2].replace(b'"key"', b'"kez"'))
    code, out, err = finish(command(*args))
    assert code == 0 and '1 of 2 runs are in' in out and 'line 2 is not a whole row' in err, out + err
    assert lines()[0] == first and len(lines()) == 3 and len(Comparison.load('runs/digits').rows) == 2

def test_one_writer(command, in_tmp):
    with lock_folder(in_tmp/'x'):
        code, out, err = finish(command('digits', '--out=x', *ARGS))
    assert code == 1 and f'process {os.getpid()}' in err and 'Traceback' not in err
    assert [o.name for o in (in_tmp/'x').iterdir()] == ['.lock']

class Notes(Watch):
    "Remember what was told."
    def __init__(self): self.rows, self.failures = [], []
    def done(self, row): self.rows.append(row)
    def failed(self, failure): self.failures.append(failure)

@needs_proc
def test_child_killed(tmp_path):
    "A child that is ended from outside is a failure that says so; the other run goes on."
    class Kill(Notes):
        def tick(self, running):
            log = next((line for s, line in running if s['seed'] == 0), '')
            if 'epoch' in log:
                for pid in children_of(os.getpid()): os.kill(pid, signal.SIGKILL)
    dls, notes = load_task('digits', frac=.1), Kill()
    runs = plan_runs(dls, ['transformer'], ['scratch'], seeds=2, size='tiny', epochs=3, pretrain_epochs=1)
    runs[0]['epochs'] = 100_000
    run_all(runs, dls, notes, n_workers=1, logs=tmp_path)
    assert [f.settings['seed'] for f in notes.failures] == [0] and [r['seed'] for r in notes.rows] == [1]
    assert 'ended by signal 9 (out of memory?)' in notes.failures[0].reason

def test_arch_of_a_module(in_tmp, monkeypatch):
    "An architecture that an importable module registers goes to other processes; one that it does not, fails with the reason."
    (in_tmp/'my_layers.py').write_text('from lrpt_nb.attention import Attention\nfrom lrpt_nb.models import register_arch\n'
        'def layer(d_model, causal=False): return Attention(d_model, causal, 2)\nregister_arch("mine", layer, family="attention", pos="sinusoidal")\n'
        'def late(d_model, causal=False): return Attention(d_model, causal, 2)\n')
    monkeypatch.syspath_prepend(in_tmp)
    import my_layers
    try:
        archs.register('late', archs['mine'].__class__('late', my_layers.late))
        with pytest.raises(RunsFailed, match='1 run failed, 1 finished') as e:
            compare('digits', inits=['scratch'], seeds=1, n_workers=2, out='x', quiet=True, **(TINY | dict(archs=['mine', 'late'])))
    finally:
        for o in 'mine', 'late': archs.items.pop(o, None)
        sys.modules.pop('my_layers', None)
    assert [r['arch'] for r in e.value.comparison.rows] == ['mine'] and 'not registered when my_layers is imported' in str(e.value)
    assert [r['arch'] for r in RunLog('x/runs.jsonl').rows()] == ['mine']
    assert Comparison.load('x').missing == ['late/scratch seed 0'] # the failed run is not taken for a finished one

def test_settings_are_never_mixed_up(tmp_path):
    "Whatever changes a result changes the key, and only that: another variant makes its own run, none is made twice."
    variants = [dict(), dict(lr=2e-3), dict(bs=64), dict(epochs=1), dict(pretrain_epochs=3), dict(labels=.5), dict(precision='bf16'), dict(pool='max'), dict(wd=.1), dict(d_model=16),
                dict(causal=True), dict(arch_kwargs=dict(transformer=dict(n_heads=2))), dict(seeds=[1]), dict(inits=['masked']), dict(inits=['masked'], pretrain_lr=.1),
                dict(inits=['masked'], objective_kwargs=dict(masked=dict(ratio=.2)))]
    base = dict(inits=['scratch'], seeds=1) | {k: v for k, v in TINY.items() if k != 'frac'}
    def keys(dls): return [settings_key(s) for v in variants for s in plan_runs(dls, **(base | v))]
    data = [load_task('digits', **kw) for kw in (dict(frac=.1), dict(frac=.2), dict(frac=.1, seed=1), dict(frac=.1, n_train=900))]
    assert len({k for dls in data for k in keys(dls)}) == len(data)*len(variants)
    assert keys(load_task('digits', frac=.1, bs=7)) == keys(data[0])
    for i, v in enumerate(variants[:3]):
        for _ in range(2):
            c = compare('digits', **(base | v), frac=.1, n_workers=0, quiet=True, out=tmp_path)
            assert len(RunLog(tmp_path/'runs.jsonl').rows()) == i+1 and len(c.rows) == 1, v

def test_another_version_is_kept_and_said(tmp_path, capsys):
    kw = dict(inits=['scratch'], seeds=1, n_workers=0, out=tmp_path) | TINY
    compare('digits', **kw)
    log = RunLog(tmp_path/'runs.jsonl')
    row, = log.rows()
    log.path.write_text(json.dumps(row | dict(versions=row['versions'] | dict(lrpt_nb='0.0.9'))) + '\n')
    capsys.readouterr()
    c = compare('digits', **(kw | dict(seeds=2)))
    assert 'made by lrpt_nb 0.0.9' in capsys.readouterr().out and len(log.rows()) == 2
    assert any('different versions of lrpt_nb: 0.0.9, ' in o for o in c.cautions())

class Counting(SeqDataset):
    "Test rows that count who asks for a batch of them."
    def batch(self, idxs, *args):
        self.asked.append(len(idxs))
        return super().batch(idxs, *args)

def counting(seed=0):
    "Digits whose test rows count, and the list in which they do."
    dls = load_task('digits', frac=.1)
    dls.test.dataset.__class__, dls.test.dataset.asked = Counting, []
    return dls, dls.test.dataset.asked

def test_test_rows_are_read_once_a_run():
    dls, asked = counting()
    own = {k: v for k, v in TINY.items() if k != 'frac'} | dict(archs=['transformer', 's4d'])
    c = compare(dls, seeds=2, n_workers=0, quiet=True, **own)
    assert sum(asked) == len(dls.test.dataset)*len(c.rows) == 497*8
    assert all(len(scores_of(r)) == 497 for r in c.rows)
    del asked[:]
    tune(dls, inits=['scratch'], grid=dict(lr=[1e-3, 3e-3]), n_workers=0, quiet=True, **own)
    assert asked == []

def test_test_labels_change_no_weight():
    "With every test label replaced, curves and validation scores are the same to the last digit."
    def run(change):
        dls = load_task('digits', frac=.1)
        if change: dls.test.dataset.y = (dls.test.dataset.y+1) % 10; dls.test.dataset.x = dls.test.dataset.x*0
        own = {k: v for k, v in TINY.items() if k != 'frac'}
        return compare(dls, seeds=1, n_workers=0, quiet=True, **own).rows
    for a, b in zip(run(False), run(True)):
        assert a['curve'] == b['curve'] and a['valid'] == b['valid'] and a['best_epoch'] == b['best_epoch'] and a['test_scores'] != b['test_scores']

def test_data_is_fixed_and_seeds_are_not():
    c = compare('digits', seeds=2, n_workers=0, quiet=True, **TINY)
    assert len({r['settings']['fingerprint'] for r in c.rows}) == 1
    assert len({json.dumps(r['curve']) for r in c.rows}) == 4

def test_labels_on_a_fraction():
    "Pretraining sees all rows, the supervised stage a tenth of them; budgets are tied in steps, and the result is marked."
    c = compare('digits', seeds=1, n_workers=0, quiet=True, labels=.1, **(TINY | dict(frac=.5)))
    masked, scratch = (c.rows_of('transformer', i)[0] for i in ('masked', 'scratch'))
    assert masked['data']['rows']['train'] == 500 and (masked['pretrain_steps'], masked['steps']) == (2*16, 2*16+2*2)
    assert 0 <= scratch['steps']-masked['steps'] < 2
    assert any('a question of its own' in o for o in c.cautions())

@pytest.mark.parametrize('kind', ['multilabel', 'regression', 'tokens', 'unequal'])
def test_own_data(kind, tmp_path):
    rng = np.random.RandomState(0)
    x = rng.randn(40, 10).astype(np.float32)
    y = dict(multilabel=(x[:, :3] > 0).astype(int), regression=x.mean(1)*50).get(kind, (x.mean(1) > 0).astype(int))
    if kind == 'tokens': x = [''.join('ab'[int(v > 0)] for v in r) for r in x]
    if kind == 'unequal': x = [r[:n] for r, n in zip(x, rng.randint(3, 11, 40))]
    c = compare(seq_dls(x, y, test=.25, bs=16), ['s4d'], seeds=1, n_workers=2 if kind == 'unequal' else 0, quiet=True, size='tiny', epochs=1, pretrain_epochs=1, out=tmp_path)
    assert needs_this_process([r['settings'] for r in c.rows], seq_dls(x, y, test=.25)) is None
    assert [len(scores_of(r)) for r in c.rows] == [10, 10] and (c.sign == -1) == (kind == 'regression')
    assert 'lower is better' not in (tmp_path/'table.md').read_text() and (tmp_path/'report.html').stat().st_size > 20_000

def test_causal_objective_builds_a_causal_body():
    c = compare('digits', inits=['scratch', 'causal'], seeds=1, n_workers=0, quiet=True, **(TINY | dict(archs=['s4d'])))
    assert any('both ways' in o for o in c.cautions())
    alike = compare('digits', inits=['scratch', 'causal'], seeds=1, n_workers=0, quiet=True, causal=True, **(TINY | dict(archs=['s4d'])))
    assert not any('both ways' in o for o in alike.cautions()) and all(r['settings']['causal'] for r in alike.rows)

def test_import_is_light():
    code = "import sys; import lrpt_nb.compare; print([o for o in ('triton', 'datasets', 'transformers') if o in sys.modules])"
    res = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert res.stdout.strip() == '[]', res.stdout + res.stderr
