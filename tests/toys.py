"Small data of every kind `seq_dls` takes and the smallest learners that fit it; shared by the trap and habit tests."
import os
os.environ.update(OMP_WAIT_POLICY='PASSIVE', MPLBACKEND='Agg', OMP_NUM_THREADS='1')
import subprocess, sys
from pathlib import Path

import numpy as np
import torch
torch.set_num_threads(1)

import lrpt_nb
from lrpt_nb.attention import positions
from lrpt_nb.data import seq_dls
from lrpt_nb.learner import sp_learner
from lrpt_nb.models import arch_info, create_body, list_archs
from fastai.callback.core import Callback

archs = list_archs()                     # a newly registered architecture is tested by being registered
ways = {'both_ways': False, 'causal': True}

def _ragged(rng, n, make, lo=2, hi=12): return [make(int(k)) for k in rng.integers(lo, hi+1, n)]

def _x_array2(r, n): return r.normal(size=(n, 12)), {}
def _x_array3(r, n): return r.normal(size=(n, 12, 3)).astype('float32'), {}
def _x_tensor(r, n): return torch.tensor(r.normal(size=(n, 12, 3))), {}
def _x_missing(r, n):
    x = r.normal(size=(n, 12, 3))
    return np.where(r.random(x.shape) < 0.2, np.nan, x), {}
def _x_padded(r, n): return r.normal(size=(n, 12, 3)), dict(lengths=r.integers(2, 13, n))
def _x_ragged(r, n): return _ragged(r, n, lambda k: r.normal(size=(k, 3))), {}
def _x_ragged1(r, n): return _ragged(r, n, lambda k: torch.tensor(r.normal(size=k))), {}
def _x_strings(r, n): return _ragged(r, n, lambda k: ''.join(r.choice(list('abcd'), k))), {}
def _x_words(r, n): return _ragged(r, n, lambda k: r.choice(['to', 'be', 'or', 'not'], k).tolist()), {}
def _x_tokens(r, n): return r.integers(0, 5, (n, 12)), {}
def _x_int_lists(r, n): return _ragged(r, n, lambda k: r.integers(3, 8, k).tolist()), {}
inputs = {k[3:]: f for k, f in dict(globals()).items() if k.startswith('_x_')}
token_inputs = 'strings', 'words', 'tokens', 'int_lists'
few_inputs = 'array3', 'ragged', 'strings'                    # dense values, unequal values, tokens

def make_x(kind, n=20, seed=0):
    "`(x, settings for seq_dls)`; the same numbers for the same `seed`."
    return inputs[kind](np.random.default_rng(seed), n)

targets = dict(
    ints=lambda r, n: np.arange(n) % 3, strings=lambda r, n: np.array(['no', 'yes'])[np.arange(n) % 2], bools=lambda r, n: (np.arange(n) % 2 == 0).tolist(),
    multihot=lambda r, n: r.integers(0, 2, (n, 4)), lists=lambda r, n: [['a', 'b', 'c'][:1+i % 3] for i in range(n)],
    number=lambda r, n: r.normal(size=n).astype('float32'), float64=lambda r, n: 50+9*r.normal(size=n),
    number1=lambda r, n: r.normal(size=(n, 1)), number3=lambda r, n: torch.tensor(r.normal(size=(n, 3))), none=lambda r, n: None)
few_targets = 'strings', 'multihot', 'number'

def make_y(kind, n=20, seed=1): return targets[kind](np.random.default_rng(seed), n)

def toy_dls(x='array3', y='strings', n=20, seed=0, **settings):
    "`DataLoaders` of a kind of input and a kind of label."
    x, more = make_x(x, n, seed)
    return seq_dls(x, make_y(y, n), **(dict(bs=8) | more | settings))

def tiny(dls, arch='transformer', **settings):
    "The smallest learner."
    return sp_learner(dls, arch, **(dict(seed=0, d_model=16, n_layers=2) | settings))

def items(x, lengths=None):
    "The rows of any container, one by one, without padding."
    return [x[i] if lengths is None else x[i][:int(lengths[i])] for i in range(len(x))]

def weights(module): return {k: v.detach().clone() for k, v in module.state_dict().items()}
def same(a, b): return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)

class OnEvent(Callback):
    "Call functions at events: `OnEvent(before_fit=f)` calls `f(callback)`."
    order = 6                            # right after the denoising callback has changed the batch
    def __init__(self, **events): self.events = events
    def __call__(self, event_name):
        if event_name in self.events: self.events[event_name](self)

def run_python(code, *args, cwd):
    "Run `code` in a process of its own; its last line of output."
    env = os.environ | dict(PYTHONPATH=os.pathsep.join([str(Path(lrpt_nb.__file__).parent.parent), str(Path(__file__).parent)]))
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', code, *map(str, args)], cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return (done.stdout.strip().splitlines() or [''])[-1]
