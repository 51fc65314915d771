"TRAPS 4, 20, 22, 25, 26, 28: every backend of `linear_scan` that runs here, against the loop in float64."
import subprocess, sys, warnings
import pytest, torch
from lrpt_nb.core import rel_err, set_seed
from lrpt_nb.scan import backend_names, linear_scan, scan_loop

backends = ['auto', *(o for o in backend_names() if o != 'triton')]      # Triton has tests of its own: tests/triton_cases.py
every_backend = pytest.mark.parametrize('backend', backends)

def wide(o): return o.to(torch.complex128 if o.is_complex() else torch.float64)

def run(scan, inputs, cotangent):
    "Output and gradients of `scan(*inputs)`."
    inputs = [o.detach().clone().requires_grad_() for o in inputs]
    h = scan(*inputs)
    return [h, *torch.autograd.grad(h, inputs, cotangent.to(h.dtype))]

def check(inputs, backend, reverse=False, cotangent=None, tol=1e-5):
    g = torch.randn_like(inputs[1]) if cotangent is None else cotangent
    got = run(lambda *o: linear_scan(*o, reverse=reverse, backend=backend), inputs, g)
    want = run(lambda *o: scan_loop(*o, reverse), [wide(o) for o in inputs], wide(g))
    for name, x, y in zip(('h', 'da', 'db', 'dh0'), got, want): assert rel_err(x, y) < tol, (name, rel_err(x, y))

def unit(*shape, radius): return torch.polar(torch.full(shape, radius), 6.2832*torch.rand(*shape))

# any length, forward and every gradient (TRAPS 22)

@every_backend
@pytest.mark.parametrize('dtype', (torch.float32, torch.complex64), ids=str)
@pytest.mark.parametrize('L', (1, 2, 3, 7, 31, 33, 63, 65, 100, 1000))
def test_any_length(backend, dtype, L):
    set_seed(L)
    for reverse in False, True:
        check((torch.rand(2, 3, L, dtype=dtype)*.7, torch.randn(2, 3, L, dtype=dtype), torch.randn(2, 3, dtype=dtype)), backend, reverse)

# complex gradients across blocks, with data that does not decay (TRAPS 25)

@every_backend
@pytest.mark.parametrize('radius', (.999, 1.))
@pytest.mark.parametrize('reverse', (False, True))
def test_complex_gradients_reach_across_blocks(backend, radius, reverse, monkeypatch):
    monkeypatch.setattr('lrpt_nb.scan.BLOCK', 200)
    set_seed(0)
    L, last = 500, torch.zeros(2, 3, 500, dtype=torch.complex64)
    last[..., 0 if reverse else -1] = torch.randn(2, 3, dtype=torch.complex64)                 # a loss on the last step only
    inputs = unit(2, 3, L, radius=radius), torch.randn(2, 3, L, dtype=torch.complex64), torch.randn(2, 3, dtype=torch.complex64)
    check(inputs, backend, reverse, last, tol=1e-4)
    check((unit(3, 1, radius=radius), *inputs[1:]), backend, reverse, last, tol=1e-4)           # the same decay at every step
    # the first step must matter as much as the last, or this test could not see the fault
    assert run(lambda *o: linear_scan(*o, reverse=reverse, backend=backend), inputs, last)[2].abs().amin() > 1e-3

# reverse is flip, scan, flip (TRAPS 26)

@every_backend
@pytest.mark.parametrize('L', (1, 2, 5, 64, 129))
def test_reverse_is_flip_scan_flip(backend, L):
    set_seed(L)
    for dtype in torch.float32, torch.complex64:
        a, b, h0 = torch.rand(3, L, dtype=dtype)*.7, torch.randn(3, L, dtype=dtype), torch.randn(3, dtype=dtype)
        got, want = linear_scan(a, b, h0, reverse=True, backend=backend), linear_scan(a.flip(-1), b.flip(-1), h0, backend=backend).flip(-1)
        assert rel_err(got, want) < 1e-6
        # the products of decays are a scan as well: of no drive, from a state of one
        one, zero = torch.ones(3, dtype=dtype), torch.zeros_like(b)
        assert rel_err(linear_scan(a, zero, one, reverse=True, backend=backend), a.flip(-1).cumprod(-1).flip(-1)) < 1e-5

# half precision (TRAPS 3, 4)

@every_backend
@pytest.mark.parametrize('half', (torch.float16, torch.bfloat16), ids=str)
def test_half_precision_is_finite_and_close(backend, half):
    set_seed(0)
    for a in torch.full((4096,), .9), torch.rand(2, 4096), torch.tensor([1.]):
        a, b = a.to(half), torch.randn(2, 4096).to(half)
        (h, hT), want = linear_scan(a, b, backend=backend, return_state=True), scan_loop(a.double().expand(2, -1), b.double())
        assert h.dtype == half and hT.dtype == torch.float32                # the carry stays in single precision
        assert torch.isfinite(h).all() and rel_err(h, want) < torch.finfo(half).eps and rel_err(hT, want[:, -1]) < 1e-5

@every_backend
def test_autocast_changes_nothing(backend):
    a, b = torch.rand(2, 300), torch.randn(2, 300)
    with torch.autocast('cpu', torch.bfloat16): h = linear_scan(a, b, backend=backend)
    assert torch.equal(h, linear_scan(a, b, backend=backend))

# memory nobody wrote (TRAPS 20)

@every_backend
@pytest.mark.parametrize('L', (1, 65, 400))
def test_unwritten_memory_is_never_read(backend, L, monkeypatch):
    real = {name: getattr(torch, name) for name in ('empty', 'empty_like')}
    for name, f in real.items(): monkeypatch.setattr(torch, name, lambda *a, f=f, **k: f(*a, **k).fill_(torch.nan))
    monkeypatch.setattr(torch.Tensor, 'new_empty', lambda self, *a, f=torch.Tensor.new_empty, **k: f(self, *a, **k).fill_(torch.nan))
    for dtype in torch.float32, torch.complex64:
        for time in L, 1:
            for reverse in False, True:
                inputs = torch.rand(2, 3, time, dtype=dtype)*.7, torch.randn(2, 3, L, dtype=dtype), torch.randn(2, 3, dtype=dtype)
                for o in run(lambda *o: linear_scan(*o, reverse=reverse, backend=backend), inputs, torch.ones_like(inputs[1])): assert torch.isfinite(torch.view_as_real(o) if o.is_complex() else o).all()

@every_backend
@pytest.mark.parametrize('how', ('transposed', 'strided', 'expanded'))
def test_layout_does_not_matter(backend, how):
    set_seed(0)
    a, b = dict(transposed=(torch.rand(40, 3).T, torch.randn(40, 3).T), strided=(torch.rand(3, 80)[:, ::2], torch.randn(6, 40)[::2]),
                expanded=(torch.rand(1, 40).expand(3, 40), torch.randn(3, 1).expand(3, 40)))[how]
    check((a, b, torch.randn(3)), backend)

# no GPU: the torch path, silently (TRAPS 28)

def test_without_gpu_auto_is_silent_and_right():
    code = """
import os, sys, warnings
assert 'TRITON_INTERPRET' not in os.environ
warnings.simplefilter('error')
import torch, lrpt_nb.scan as s
a, b = torch.rand(2, 50, requires_grad=True), torch.randn(2, 50)
h = s.linear_scan(a, b)
h.sum().backward()
assert torch.allclose(h, s.scan_loop(a, b), atol=1e-5) and torch.isfinite(a.grad).all()
assert 'triton' not in sys.modules
"""
    import os
    env = {k: v for k, v in os.environ.items() if k != 'TRITON_INTERPRET'} | dict(CUDA_VISIBLE_DEVICES='')
    r = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, env=env)
    assert r.returncode == 0 and not r.stderr, r.stderr

@pytest.mark.skipif(torch.cuda.is_available(), reason='a GPU can launch it')
def test_triton_by_name_without_gpu_warns_once_and_is_right():
    set_seed(0)
    a, b = torch.rand(2, 50), torch.randn(2, 50)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        for _ in range(3): assert rel_err(linear_scan(a, b, backend='triton'), scan_loop(a, b)) < 1e-5
    seen = [str(o.message) for o in seen if 'linear_scan' in str(o.message)]
    assert len(seen) == 1 and "'triton' cannot run" in seen[0], seen
