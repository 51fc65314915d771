"Every task that needs nothing from outside trains for two steps; weights and samplers change training alone (TRAPS 44); groups, times, labels of steps, pairs and rows on disk through a learner."
import json, os, subprocess, sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fastai.callback.core import CancelFitException, Callback

from lrpt_nb.data import seq_dls
from lrpt_nb.learner import load_learner, sp_learner
from lrpt_nb.sets import find_task
from lrpt_nb.tasks import list_tasks, load_task, task_ready

small = dict(listops=dict(n_train=40, n_valid=10, n_test=10, min_len=5, max_len=30), pathfinder=dict(n_train=24, n_valid=8, n_test=8), fashion_mnist=dict(side=14, n_train=40, n_valid=10, n_test=10))
for o in ('delay', 'first_token', 'flip_flop', 'mnist1d', 'parity', 'recall', 'selective_copy'): small[o] = dict(n_train=40, n_valid=10, n_test=10)
here = [o for o in list_tasks() if task_ready(o) in ('generated', 'installed') or o == 'fashion_mnist' and task_ready(o) == 'folder']

class TwoSteps(Callback):
    def before_batch(self):
        if self.training and self.iter == 2: raise CancelFitException

@pytest.mark.parametrize('name', here)
def test_two_steps(name):
    dls = load_task(name, bs=8, **small.get(name, {}))
    assert dls.test is not None and all(len(dl.dataset) for dl in dls.loaders)
    learn = sp_learner(dls, 's4d', size='tiny', seed=0)
    before = learn.model.head.out.weight.detach().clone()
    with learn.no_bar(), learn.no_logging(): learn.fit(1, 1e-3, cbs=TwoSteps())
    assert len(learn.recorder.losses) == 2 and np.isfinite([float(o) for o in learn.recorder.losses]).all()
    assert not torch.equal(before, learn.model.head.out.weight)

@pytest.mark.parametrize('name', ['listops', 'pathfinder'])
def test_the_same_rows_for_one_seed(name):
    a, b, c = (load_task(name, seed=s, **small[name]).info()['fingerprint'] for s in (0, 0, 1))
    assert a == b != c

@pytest.mark.parametrize('name', ['first_token', 'listops', 'digit_pairs'])
def test_test_rows_do_not_depend_on_how_many_train(name):
    kw = {k: v for k, v in small.get(name, {}).items() if k in ('min_len', 'max_len')} | dict(n_valid=30, n_test=40)
    a, b = (find_task(name).make(1, n_train=n, **kw) for n in (200, 60))
    def rows(part): return [np.asarray(o).tobytes() for o in (part['x'] if isinstance(part, dict) else part[0])]
    for k in ('valid', 'test'): assert rows(a[k]) == rows(b[k])
    splits = [set(rows(o)) for o in (a, a['valid'], a['test'])]
    assert not splits[0] & splits[1] and not splits[0] & splits[2] and not splits[1] & splits[2]

# 44: class weights and samplers

x98 = np.random.default_rng(0).normal(size=(100, 20, 1)); x98[98:] += 3
y98 = ['common']*98+['rare']*2

@pytest.mark.parametrize('kw', (dict(class_weights='balanced'), dict(sampler='balanced'), dict(class_weights={'rare': 40}), dict(sampler=np.r_[np.ones(98), 49, 49])), ids=str)
def test_rows_in_rows_out_in_order(kw):
    valid = [0, 1, 2, 3, 98]
    dls = seq_dls(x98, y98, valid=valid, bs=8, **kw)
    learn = sp_learner(dls, 's4d', size='tiny', seed=0)
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(2, 3e-3)
    preds, y = learn.get_preds()
    assert y.tolist() == [0, 0, 0, 0, 1] and len(preds) == 5
    train = learn.get_preds(ds_idx=0)[1]
    assert train.tolist() == dls.train_ds.y.tolist()            # once each, in order
    new = learn.get_preds(dl=dls.test_dl(x98))[0]
    assert len(new) == 100 and torch.allclose(new[valid], preds, atol=1e-5)
    one_by_one = torch.stack([learn.predict(o)[2] for o in x98[:3]])
    assert torch.allclose(one_by_one, new[:3], atol=1e-5)

def test_a_sampler_evens_out_the_classes():
    dls = seq_dls(x98, y98, valid=[0, 1, 2, 98], bs=8, sampler='balanced')
    drawn = torch.cat([b[-1] for _ in range(10) for b in dls.train])
    assert .35 < drawn.float().mean() < .65 and len(drawn) == 960

def test_groups_stay_whole():
    g = np.repeat(np.arange(20), 5)
    for seed in range(4):
        dls = seq_dls(np.arange(100)[:, None]*np.ones((1, 3)), None, valid=.2, test=.2, groups=g, seed=seed, normalize=False)
        owners = [set(g[dl.dataset.x[:, 0, 0].int().numpy()]) for dl in dls.loaders]
        assert not owners[0] & owners[1] and not owners[0] & owners[2] and not owners[1] & owners[2] and sum(map(len, owners)) == 20
    with pytest.raises(ValueError, match='group 0 has rows in'): seq_dls(x98, y98, valid=[0, 1], groups=g)

@pytest.mark.parametrize('arch', ['s4d', 's5', 'transformer'])
def test_irregular_steps(arch, tmp_path):
    rng = np.random.default_rng(0)
    times = [np.cumsum(rng.exponential(size=n)) for n in rng.integers(5, 20, 30)]
    x = [np.stack([np.sin(t), np.cos(t)], 1) for t in times]
    dls = seq_dls(x, [len(o) > 12 for o in x], times=times, bs=8)
    learn = sp_learner(dls, arch, size='tiny', seed=0)
    with learn.no_bar(), learn.no_logging(): learn.self_pretrain(1); learn.fit_one_cycle(1, 1e-3)
    before = learn.predict(x[0], times=times[0])[2]
    assert torch.allclose(before, learn.predict(x[0], times=times[0]+1000)[2], atol=1e-5)     # only gaps count
    assert not torch.allclose(before, learn.predict(x[0], times=times[0]**2)[2], atol=1e-6)
    learn.path = tmp_path; learn.export('t.pkl')
    assert torch.equal(load_learner(tmp_path/'t.pkl').predict(x[0], times=times[0])[2], before)
    with pytest.raises(ValueError, match='pass times'): learn.predict(x[0])

@pytest.mark.parametrize('kind', ['dense', 'dense_regression'])
def test_labels_of_steps(kind):
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(n, 1)) for n in rng.integers(3, 15, 60)]
    y = [['up' if v > 0 else 'down' for v in o[:, 0]] for o in x] if kind == 'dense' else [o[:, 0]*3+1 for o in x]
    dls = seq_dls(x, y, kind=kind, bs=8)
    learn = sp_learner(dls, 's4d', size='tiny', seed=0)
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(15, 1e-2)
    answer = learn.predict(x[0])[0]
    assert len(answer) == len(x[0])
    if kind == 'dense': assert np.mean([a == b for o, t in zip(x[:20], y) for a, b in zip(learn.predict(o)[0], t)]) > .9
    else: assert np.corrcoef(np.concatenate([learn.predict(o)[0] for o in x[:20]]), np.concatenate(y[:20]))[0, 1] > .9

def test_two_sequences_a_row():
    rng = np.random.default_rng(0)
    docs = [''.join(rng.choice(list('abc'), rng.integers(3, 9))) for _ in range(40)]
    learn = sp_learner(seq_dls(docs, [0, 1]*20, pair=docs[::-1], bs=8), 'transformer', size='tiny', seed=0)
    with learn.no_bar(), learn.no_logging(): learn.self_pretrain(1); learn.fit_one_cycle(1, 1e-3)
    many = learn.get_preds(dl=learn.dls.test_dl(docs, pair=docs[::-1]))[0]
    assert torch.allclose(learn.predict((docs[3], docs[-4]))[2], many[3], atol=1e-5) and learn.embed().shape[1] == 64
    with pytest.raises(ValueError, match='compares two'): learn.predict(docs[0])

def test_disk_and_memory_train_alike(tmp_path):
    x = np.random.default_rng(0).integers(0, 255, (60, 32)).astype('u1')
    np.save(tmp_path/'x.npy', x)
    def run(x):
        learn = sp_learner(seq_dls(x, [0, 1]*30, x_kind='values', bs=8), 's4d', size='tiny', seed=0)
        with learn.no_bar(), learn.no_logging(): learn.self_pretrain(1); learn.fit_one_cycle(1, 1e-3)
        return learn.get_preds()[0]
    assert torch.allclose(run(x), run(np.load(tmp_path/'x.npy', mmap_mode='r')), atol=1e-4)

def test_unknown_archive_set_is_named():
    with pytest.raises((ValueError, OSError, ImportError), match='Nowhere'): find_task('ucr/Nowhere').make(0)

def test_an_archive_set_is_ready_when_its_files_are_there(tmp_path, monkeypatch):
    from lrpt_nb.tasks import task_ready
    monkeypatch.setenv('LRPT_NB_SOURCES', str(tmp_path)); (tmp_path/'ucr').mkdir()
    assert task_ready('ucr/Nonsense') == task_ready('ucr/Toy') == 'missing'
    x, y, _ = vitals(np.random.default_rng(0), 8)
    for s in 'TRAIN', 'TEST': assert task_ready('ucr/Toy') == 'missing'; ts_file(tmp_path/'ucr'/f'Toy_{s}.ts', x[:9], y[:9])
    assert task_ready('ucr/Toy') == 'folder' and task_ready('ucr/Nonsense') == 'missing'

def test_command_takes_a_task_by_position(tmp_path):
    def run(*args): return subprocess.run([Path(sys.executable).with_name('lrpt_tasks'), *args], capture_output=True, text=True, cwd=tmp_path, env=os.environ | dict(LRPT_NB_DATA=str(tmp_path/'data')))
    digits = run('digits', '--as_json')
    assert digits.returncode == 0 and json.loads(digits.stdout)[0]['rows'] == dict(train=1000, valid=300, test=497), digits.stderr
    assert run().stdout.count('\n') == len(list_tasks())+1
    gone = run('imdb', '--prepare')
    assert gone.returncode == 1 and 'imdb is not on this machine' in gone.stderr and 'fetches 80.2 MiB' in gone.stderr and 'Traceback' not in gone.stderr
    assert not (tmp_path/'data').exists()           # nothing is begun for what is not there

# public sets, in small copies of the published layouts, by name

from test_images import cifar_rows, write_py
from test_signals import speech, ts_file, vitals
from test_texts import make_imdb, make_pairs

def write_bidmc(root):
    x, y, who = vitals(np.random.default_rng(0), 8)
    for part, rows in (('TRAIN', slice(0, -6)), ('TEST', slice(-6, None))): ts_file(root/f'BIDMC32RR_{part}.ts', x[rows], y[rows])

copies = dict(cifar=lambda at: write_py(at/'cifar-10-batches-py', cifar_rows()), scifar=lambda at: write_py(at/'cifar-10-batches-py', cifar_rows()), imdb=make_imdb, retrieval=make_pairs, speech_commands=speech, bidmc=write_bidmc)

@pytest.mark.parametrize('name', copies)
def test_a_public_set_by_name_trains(name, tmp_path):
    (tmp_path/'raw').mkdir()
    copies[name](tmp_path/'raw')
    dls = load_task(name, bs=8, folder=tmp_path/'raw', counts='any', home=tmp_path/'home', progress=False)
    assert all(len(dl.dataset) for dl in dls.loaders) and dls.task.name == name and (dls.train.dataset.towers == 2) == (name == 'retrieval')
    learn = sp_learner(dls, 's4d', size='tiny', seed=0)
    with learn.no_bar(), learn.no_logging(): learn.self_pretrain(1); learn.fit(1, 1e-3, cbs=TwoSteps())
    assert np.isfinite([float(o) for o in learn.recorder.losses]).all() and len(learn.get_preds(ds_idx=2)[0]) == len(dls.test_ds if hasattr(dls, 'test_ds') else dls.test.dataset)
    learn.path = tmp_path; learn.export('p.pkl')
    assert str(tmp_path).encode() not in (tmp_path/'p.pkl').read_bytes()           # no path of this machine travels
