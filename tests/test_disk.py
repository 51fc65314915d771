"Rows on disk through the front door: a set larger than what may be held, and workers that are spawned."
import subprocess, sys

import numpy as np
import pytest
import torch

from lrpt_nb.data import seq_dls
from lrpt_nb.storage import prepare

LARGE = '''
import resource, sys
import numpy as np
from fastai.callback.schedule import *
from fastai.callback.training import ShortEpochCallback
from lrpt_nb.data import seq_dls
from lrpt_nb.learner import sp_learner

n, L = 160_000, 1024
x = np.memmap(sys.argv[1], np.float32, 'w+', shape=(n, L))          # a sparse file: holes read as zeros and take no disk
rng = np.random.default_rng(0)
for i in range(0, n, 1000): x[i] = rng.normal(3, 2, L)
x.flush()
x = np.memmap(sys.argv[1], np.float32, 'r', shape=(n, L))
y = rng.integers(0, 2, n)

def data_kb(): return next(int(o.split()[1]) for o in open('/proc/self/status') if o.startswith('VmData'))
room = 400*2**20                                                    # the rows are 655 MB
assert x.nbytes > 1.5*room
limit = data_kb()*1024 + room
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try: np.ones(x.shape, np.float32); raise SystemExit('the limit does not hold')
except MemoryError: pass
dls = seq_dls(x, y, valid=.1, bs=16, seed=0, device='cpu')
learn = sp_learner(dls, arch='s4d', size='tiny', seed=0)
with learn.no_bar(), learn.no_logging():
    few = ShortEpochCallback(pct=4/len(dls.train), short_valid=True)
    learn.self_pretrain(1, cbs=few)
    learn.fit(1, cbs=few)
print('trained', len(dls.train.dataset), dls.prep.max_len)
'''

@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='the limit on private memory is as Linux has it')
def test_160000_rows_of_1024_train_without_being_held(tmp_path):
    "Statistics, splits, both kinds of training: within 400 MB beyond the imports, for 655 MB of rows."
    res = subprocess.run([sys.executable, '-W', 'ignore', '-c', LARGE, tmp_path/'x.bin'], capture_output=True, text=True)
    assert res.returncode == 0, res.stderr[-3000:]
    assert res.stdout.split()[-3:] == ['trained', '144000', '1024']

def _kept(kind, folder):
    "Rows on disk, what `seq_dls` needs to know about them, and labels."
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 33, 60)
    x = dict(values=lambda: rng.normal(size=(60, 32, 2)).astype(np.float32), unequal=lambda: [rng.normal(size=(k, 2)).astype(np.float32) for k in lengths],
             tokens=lambda: rng.integers(0, 5, (60, 32)).astype(np.uint8), unequal_tokens=lambda: [rng.integers(0, 5, k).astype(np.uint8) for k in lengths])[kind]()
    y = rng.integers(0, 2, 60)
    return prepare(kind, {}, lambda w: w.add('train', x=x, y=y), home=folder, progress=False).split('train'), dict(symbols=list('abcde')) if 'tokens' in kind else {}

@pytest.mark.parametrize('kind, context', [('values', 'fork'), ('unequal', 'fork'), ('unequal', 'spawn'), ('tokens', 'spawn'), ('unequal_tokens', 'fork')])
def test_two_workers_read_what_this_process_reads(kind, context, tmp_path):
    "Two epochs of training batches and the validation batches, in the same order; the workers stay for the second epoch."
    if context == 'fork' and sys.platform == 'win32': pytest.skip('there is no fork')
    rows, kw = _kept(kind, tmp_path)
    here, there = (seq_dls(rows['x'], rows['y'], bs=8, seed=0, device='cpu', **kw, **more) for more in ({}, dict(num_workers=2, context=context)))
    for _ in range(2):
        a, b = list(here.train), list(there.train)
        assert len(a) == len(b) == 6 and all(torch.equal(p, q) for o, k in zip(a, b) for p, q in zip(o, k))
    assert all(torch.equal(p, q) for o, k in zip(here.valid, there.valid) for p, q in zip(o, k))
