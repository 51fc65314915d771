"The Triton scan's kernels in Triton's interpreter; run by `test_scan_triton.py` with `TRITON_INTERPRET=1`, which is why no `test_` begins its name."
import itertools, warnings
import pytest
import torch
import conftest  # noqa: threads
import lrpt_nb.scan as scan
from lrpt_nb.core import rel_err
from lrpt_nb.scan import linear_scan, scan_loop
import lrpt_nb.scan_triton as st
from lrpt_nb.scan_triton import Config, triton_scan

assert st.INTERPRETED
tiny = Config(2, 16, 1, 1, 4096, 1)             # several blocks with a carry
split = tiny._replace(span=32, segments=4)      # segments of two blocks, up to 128 steps
way = pytest.mark.parametrize('reverse', (False, True))

def segmented(L, cfg=split): return cfg._replace(segments=-(-L//cfg.span))

def oracle(a, b, h0=None, reverse=False):
    wide = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float64)
    shape = torch.broadcast_shapes(a.shape, b.shape)
    a = a.reshape((1,)*(len(shape)-a.dim()) + a.shape)
    h = scan_loop(a.to(wide).expand(*shape[:-1], a.shape[-1]), b.to(wide).expand(shape), None if h0 is None else h0.to(wide).expand(shape[:-1]), reverse)
    return h, h[..., 0 if reverse else -1]

def problem(L, rows=(3,), dtype=torch.float32, radius=None, const=False, seed=0):
    "Decays of modulus up to 1 (all of `radius` when given) with random phase or sign, drives, a first state."
    gen = torch.Generator().manual_seed(seed)
    def randn(*shape): return torch.randn(*shape, generator=gen, dtype=dtype if dtype.is_complex else torch.float64)
    a = randn(*rows, 1 if const else L)
    a = a/a.abs()*(torch.rand(a.shape, generator=gen) if radius is None else radius)
    return a.to(dtype), randn(*rows, L).to(dtype), randn(*rows).to(dtype)

def run(f, args, reverse, last_only=False, **kw):
    xs = [None if o is None else o.detach().clone().requires_grad_() for o in args]
    h, hT = f(*xs, reverse, **kw)
    gen = torch.Generator().manual_seed(1)
    w, wT = (torch.randn(o.shape, generator=gen, dtype=torch.complex128) for o in (h, hT))
    if not h.is_complex(): w, wT = w.real, wT.real
    # torch's gradient of a complex loss needs a real one: products with fixed weights, absolute value of the sum
    loss = (h[..., 0 if reverse else -1]*wT).sum().abs() if last_only else ((h*w).sum() + (hT*wT).sum()).abs()
    loss.backward()
    # autograd gives None to decays that a loop of one step never used
    return dict(h=h, hT=hT) | {f'd{n}': torch.zeros_like(x) if x.grad is None else x.grad for n, x in zip(('a', 'b', 'h0'), xs) if x is not None}

def same(args, reverse=False, tol=2e-6, scan=triton_scan, **kw):
    last_only = kw.pop('last_only', False)
    got, want = run(scan, args, reverse, last_only, **kw), run(oracle, args, reverse, last_only)
    assert got.keys() == want.keys()
    for n in want: assert rel_err(got[n], want[n]) < tol, (n, rel_err(got[n], want[n]))
    for n, x in zip(('da', 'db', 'dh0'), args):
        if x is not None: assert got[n].dtype == x.dtype and got[n].shape == x.shape
    return got

# 22: lengths

@pytest.mark.parametrize('L', (1, 2, 3, 7, 31, 33, 63, 65, 100))
@pytest.mark.parametrize('dtype', (torch.float32, torch.complex64), ids=str)
@pytest.mark.parametrize('const', (False, True), ids=('varying', 'constant'))
@way
def test_lengths(L, dtype, const, reverse):
    a, b, h0 = problem(L, (3,) if L < 40 else (1,), dtype, const=const, seed=L)
    same((a, b, h0), reverse, cfg=tiny)
    same((a, b, None), reverse, cfg=segmented(L))
    if L < 20: same((a, b, h0), reverse)

@pytest.mark.parametrize('dtype', (torch.float64, torch.complex128), ids=str)
@way
def test_double(dtype, reverse):
    for const in (False, True):
        args = problem(50, dtype=dtype, const=const)
        same(args, reverse, 1e-13, cfg=tiny)
        same(args, reverse, 1e-13, cfg=segmented(50))

@way
def test_finite_differences(reverse):
    for dtype, const in itertools.product((torch.float64, torch.complex128), (False, True)):
        args = [o.requires_grad_() for o in problem(3, (1,), dtype, const=const)]
        cfg = Config(1, 2, 1, 1, 2, 2)
        assert torch.autograd.gradcheck(lambda *o: triton_scan(*o, reverse, cfg=cfg), args, fast_mode=True)

def test_a_thousand_steps():
    same(problem(1000, (1,)), cfg=Config(1, 64, 1, 1, 1024, 1))
    same(problem(1000, (1,), const=True), True, cfg=Config(1, 64, 1, 1, 256, 4))

# 25: slow decays, complex, three blocks or more, loss on the last step alone

@pytest.mark.parametrize('radius', (0.999, 1.0))
@pytest.mark.parametrize('dtype', (torch.complex64, torch.float32), ids=str)
@pytest.mark.parametrize('const', (False, True), ids=('varying', 'constant'))
@way
def test_slow_decays_across_blocks(radius, dtype, const, reverse):
    args = problem(100, (2,), dtype, radius, const)
    for cfg in (tiny, segmented(100)): same(args, reverse, 5e-6, cfg=cfg, last_only=True)

@way
def test_gradient_of_the_final_state_alone(reverse):
    args = [o.requires_grad_() for o in problem(50, (2,), torch.complex64, 0.999)]
    for cfg in (tiny, segmented(50)):
        got = torch.autograd.grad(triton_scan(*args, reverse, cfg=cfg)[1].abs().sum(), args)
        want = torch.autograd.grad(oracle(*args, reverse)[1].abs().sum(), args)
        for g, w in zip(got, want): assert rel_err(g, w) < 2e-6

# 26: both members of the pair, reversed

@pytest.mark.parametrize('dtype', (torch.float32, torch.complex64), ids=str)
def test_reverse_is_flip_scan_flip(dtype):
    a, b, h0 = problem(75, (2,), dtype, 0.98)
    one = torch.ones(2, dtype=dtype)
    for cfg in (tiny, segmented(75)):
        # states, and from a state of one without drive the products of the decays
        for drive, start in ((b, h0), (torch.zeros_like(b), one)):
            h, hT = triton_scan(a, drive, start, True, cfg)
            f, fT = triton_scan(a.flip(-1), drive.flip(-1), start, False, cfg)
            assert torch.equal(h, f.flip(-1)) and torch.equal(hT, fT)
        assert rel_err(triton_scan(a, torch.zeros_like(b), one, True, cfg)[0], a.to(torch.complex128).flip(-1).cumprod(-1).flip(-1)) < 2e-6

# 4, 3: half precision carries in float32

@pytest.mark.parametrize('half', (torch.bfloat16, torch.float16), ids=str)
@way
def test_half_precision(half, reverse):
    for L, const in ((1000, True), (130, False)):
        b = torch.randn(1, L, generator=torch.Generator().manual_seed(0)).to(half)
        a = torch.full((1, 1 if const else L), 0.9, dtype=half)
        cfg = Config(1, 64, 1, 1, 1024, 1)
        got, want = run(triton_scan, (a, b, None), reverse, cfg=cfg), run(oracle, (a, b, None), reverse)
        assert got['h'].dtype == half and got['hT'].dtype == torch.float32 and got['da'].dtype == got['db'].dtype == half
        assert rel_err(got['h'], want['h']) < torch.finfo(half).eps and (got['hT'] - want['hT']).abs().max() < 1e-6*want['h'].abs().max()
        assert rel_err(got['db'], want['db']) < 2*torch.finfo(half).eps
        assert rel_err(got['da'], want['da']) < 4*torch.finfo(half).eps

def test_mixed_precision():
    a, b, h0 = problem(40)
    for x in (b.bfloat16(), b.double()):
        h, hT = triton_scan(a, x, h0, cfg=tiny)
        assert h.dtype == torch.promote_types(a.dtype, x.dtype) and rel_err(h, oracle(a, x, h0)[0]) < 1e-6
    got = run(triton_scan, (a, b.bfloat16(), h0), False, cfg=tiny)
    assert got['h'].dtype == torch.float32 and got['db'].dtype == torch.bfloat16

# broadcasting, strides, dtypes

@pytest.mark.parametrize('shape', ((1,), (40,), (1, 40), (4, 40), (4, 1), (2, 1, 40), (2, 1, 1), (2, 4, 1), (2, 4, 40), ()), ids=str)
@way
def test_broadcast_decays(shape, reverse):
    gen = torch.Generator().manual_seed(0)
    a, b, h0 = torch.rand(shape, generator=gen), torch.randn(2, 4, 40, generator=gen), torch.randn(4, generator=gen)
    for cfg in (tiny, segmented(40)): same((a, b, h0), reverse, 3e-6, cfg=cfg)
    same((a, b[..., :1] if shape and shape[-1] == 40 else b[0], None), reverse, 3e-6, cfg=tiny)

def test_decays_shared_in_a_pattern_of_four_runs():
    a, b = torch.rand(2, 1, 2, 1, 2, 1, 2, 9), torch.randn(2, 2, 2, 2, 2, 2, 2, 9)
    assert rel_err(triton_scan(a, b, cfg=Config(8, 16, 1, 1, 16, 1))[0], oracle(a, b)[0]) < 1e-6

def test_broadcast_decays_are_not_copied(monkeypatch):
    "Three steps apart from each other: the arrays that are made are `h` and `hT`, and in the backward pass one `da` where it is per step."
    made, empty = [], torch.empty
    def counting(*o, **kw):
        x = empty(*o, **kw)
        made.append(x.numel())
        return x
    monkeypatch.setattr(torch, 'empty', counting)
    a, b = torch.rand(4, 1, requires_grad=True), torch.randn(6, 4, 40)
    h, _ = triton_scan(a, b, cfg=tiny)
    assert sorted(made) == [24, 960]
    made.clear()
    h.sum().backward()
    assert max(made) <= 24

@way
def test_strided_inputs(reverse):
    a, b, h0 = problem(40, (3, 2))
    want = triton_scan(a, b, h0, reverse, tiny)[0]
    for f in (lambda x: x.transpose(0, 1).contiguous().transpose(0, 1), lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
              lambda x: torch.stack([x, x], -1)[..., 0]):
        assert torch.equal(triton_scan(f(a), f(b), f(h0), reverse, tiny)[0], want)
        same((f(a), f(b), f(h0)), reverse, cfg=tiny)
    a, b, h0 = problem(40, (2,), torch.complex64)
    assert torch.equal(triton_scan(a.conj(), b.conj(), h0.conj(), reverse, tiny)[0], triton_scan(*(o.conj().resolve_conj() for o in (a, b, h0)), reverse, tiny)[0])
    # an expanded decay has a gradient of its own shape
    x = torch.rand(1, 1, requires_grad=True)
    triton_scan(x.expand(3, 40), torch.ones(3, 40), cfg=tiny)[0].sum().backward()
    y = x.detach().double().requires_grad_()
    oracle(y, torch.ones(3, 40))[0].sum().backward()
    assert rel_err(x.grad, y.grad) < 1e-6

def test_real_decays_of_complex_states():
    a, b, h0 = problem(40, dtype=torch.complex64)
    for args in ((a.abs(), b, h0), (a, b.real, h0), (a.abs(), b, h0.real), (a.real.double(), b, h0)): same(args, tol=3e-6, cfg=tiny)

def test_no_rows():
    for shape in ((0, 5), (2, 0, 5)):
        b = torch.randn(shape, requires_grad=True)
        h, hT = triton_scan(torch.rand(5), b)
        assert h.shape == shape and hT.shape == shape[:-1]
        h.sum().backward()

def test_only_what_is_asked_for():
    a, b, h0 = problem(20)
    for wanted in itertools.product((False, True), repeat=3):
        xs = [o.clone().requires_grad_(n) for o, n in zip((a, b, h0), wanted)]
        if not any(wanted): continue
        h, hT = triton_scan(*xs, cfg=tiny)
        (h.sum() + hT.sum()).backward()
        ys = [o.double().requires_grad_() for o in (a, b, h0)]
        oh, ohT = oracle(*ys)
        (oh.sum() + ohT.sum()).backward()
        for x, y, n in zip(xs, ys, wanted): assert (rel_err(x.grad, y.grad) < 2e-6) if n else x.grad is None

# 20: nothing uninitialised, and numbers out of range

@pytest.mark.parametrize('dtype', (torch.float32, torch.complex64), ids=str)
@way
def test_empty_full_of_nan(dtype, reverse, monkeypatch):
    empty, empty_like = torch.empty, torch.empty_like
    def nan(x): return x.fill_(float('nan')) if x.is_floating_point() or x.is_complex() else x
    monkeypatch.setattr(torch, 'empty', lambda *o, **kw: nan(empty(*o, **kw)))
    monkeypatch.setattr(torch, 'empty_like', lambda *o, **kw: nan(empty_like(*o, **kw)))
    for L, const, cfg in itertools.product((1, 17, 70), (False, True), (tiny, split)):
        a, b, h0 = problem(L, (3,), dtype, const=const)
        same((a, b, h0), reverse, 3e-6, cfg=segmented(L, cfg))

@way
def test_a_silent_start_survives_growing_decays(reverse):
    "Products of decays beyond float32, over states that are zero."
    b = torch.zeros(2, 96)
    b[:, -3:] = 1
    if reverse: b = b.flip(-1)
    for a in (torch.full((2, 96), 100.), torch.full((1, 1), 100.), torch.full((2, 1), 100+1j)):
        for cfg in (tiny, segmented(96), Config(2, 128, 1, 1, 128, 1)):
            h, hT = triton_scan(a, b, None, reverse, cfg)
            assert rel_err(h, oracle(a, b, None, reverse)[0]) < 1e-6

def test_not_a_number_is_passed_on():
    for bad in (float('nan'), float('inf')):
        a, b, _ = problem(40, (2,))
        a[0, 20] = bad
        h, hT = triton_scan(a, b, cfg=tiny)
        assert h[0, :20].isfinite().all() and not h[0, 20:].isfinite().any() and h[1].isfinite().all()
        # on a state of zero too, as in the loop
        assert not triton_scan(a, 0*b, cfg=tiny)[0][0, 20:].isfinite().any()

# 60 and 28: launches that fail, and the tuner

@pytest.fixture
def forgetful(monkeypatch):
    "No failure and no warning remembered from before or for later."
    monkeypatch.setattr(st, '_broken', {})
    monkeypatch.setattr(scan, '_warned', set())

def boom(*o, **kw): raise RuntimeError('no kernel image')

@pytest.mark.parametrize('where', ('forward', 'backward'))
@pytest.mark.parametrize('half', (False, True), ids=('fp32', 'bf16'))
def test_a_launch_that_raises(where, half, forgetful, monkeypatch):
    launch = st._launch
    a, b, h0 = (o.bfloat16() if half else o for o in problem(20, (2, 3)))
    a = a[:1, :, :1]
    w = torch.nn.Parameter(a.clone())
    calls = []
    def failing(kernel, *o, **kw):
        calls.append(kernel)
        if where == 'forward' or kernel is st._adjoint_kernel: boom()
        return launch(kernel, *o, **kw)
    monkeypatch.setattr(st, '_launch', failing)
    opt = torch.optim.SGD([w], 1e-3)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        for i in range(3):
            before = w.detach().clone()
            h, hT = triton_scan(w, b, h0)
            opt.zero_grad()
            (h.float().square().sum() + hT.sum()).backward()
            x = before.double().requires_grad_()
            oh, ohT = oracle(x, b, h0)
            (oh.square().sum() + ohT.sum()).backward()
            assert rel_err(w.grad, x.grad) < (0.03 if half else 1e-5) and h.dtype == w.dtype and w.grad.dtype == w.dtype
            opt.step()
            assert not torch.equal(w.detach(), before) or half
    assert [o.category for o in seen] == [RuntimeWarning] and 'no kernel image' in str(seen[0].message)
    assert len(calls) == (1 if where == 'forward' else 2)   # not tried again

def test_running_out_of_memory_is_not_hidden(forgetful, monkeypatch):
    def full(*o, **kw): raise torch.OutOfMemoryError('full')
    monkeypatch.setattr(st, '_launch', full)
    with pytest.raises(torch.OutOfMemoryError): triton_scan(*problem(5))
    assert not st._broken

def test_through_linear_scan():
    for dtype, const in itertools.product((torch.float32, torch.complex64, torch.bfloat16), (False, True)):
        a, b, h0 = problem(33, (2,), dtype, const=const)
        for reverse in (False, True):
            def f(a, b, h0, reverse): return linear_scan(a, b, h0, reverse, backend='triton', return_state=True)
            same((a, b, h0), reverse, 0.03 if dtype == torch.bfloat16 else 3e-6, scan=f)

@pytest.mark.parametrize('dtype', (torch.float32, torch.complex128), ids=str)
def test_the_tuned_path(dtype, monkeypatch):
    "The autotuner with a stop-watch that prefers one candidate: key, candidates and launch, all but the timing itself."
    timed = []
    def bench(call, quantiles):
        call()
        timed.append(1)
        return [1/len(timed)]*3
    monkeypatch.setattr(st, '_tuners', {})
    for kernel in (st._scan_kernel, st._adjoint_kernel): st._tuned(kernel, bench)
    monkeypatch.setattr(st, 'tuning_pays', lambda R, L: True)
    small = st.launch_config
    monkeypatch.setattr(st, 'launch_config', lambda *o, **kw: small(*o, **kw)._replace(block=16, rows=1, span=32, segments=1))
    args = problem(20, (1,), dtype)
    same(args, cfg=None, tol=3e-6)
    n = len(timed)
    assert n >= 8
    same(problem(23, (1,), dtype), cfg=None, tol=3e-6)     # the same bucket: nothing is timed again
    assert len(timed) == n
    same(args, True, cfg=None, tol=3e-6)
    assert len(timed) > n
