"State-space kernels where such models break: extreme steps, training, precision, memory, steps against convolution, no complex numbers."
import subprocess, sys, warnings

import pytest, torch
from torch.utils._python_dispatch import TorchDispatchMode

from lrpt_nb.conv import long_conv
from lrpt_nb.core import rel_err, seed_scope
from lrpt_nb.ssm import (diag_inits, diag_init, diag_kernel, diag_kernel_loop, diag_kernel_vandermonde, diag_scan, diag_step, discs,
                         dplr_kernel, dplr_kernel_loop, dplr_step, nplr_legs)

lengths = (1, 2, 3, 7, 31, 33, 63, 65, 100, 1000)
kinds = [f'{init}-{disc}' for init in diag_inits for disc in discs] + ['dplr']

class Toy(torch.nn.Module):
    "Parameters as a layer keeps them: real, decay and step as logarithms; `kind` is `init-disc` or `dplr`."
    def __init__(self, kind, H=3, N=8, ch=2, log_dt=None, seed=0, dtype=torch.float32):
        super().__init__()
        self.kind = kind
        with seed_scope(seed):
            A, P, B = (o.repeat(H, 1) for o in nplr_legs(2*N))
            if kind != 'dplr': A, B = diag_init(kind.split('-')[0], N).repeat(H, 1), torch.randn(H, N, dtype=torch.complex64)
            C = torch.randn(ch, H, N, dtype=torch.complex64)
            dt = torch.linspace(-6, -2, H) if log_dt is None else torch.full((H,), float(log_dt))
        ps = dict(log_decay=torch.log(-A.real), freq=A.imag, B=torch.view_as_real(B), C=torch.view_as_real(C), log_dt=dt)
        if kind == 'dplr': ps['P'] = torch.view_as_real(P)
        for n, p in ps.items(): setattr(self, n, torch.nn.Parameter(p.to(dtype).clone()))

    def args(self):
        "What the kernel functions take."
        A, (B, C) = torch.complex(-self.log_decay.exp(), self.freq), (torch.view_as_complex(o) for o in (self.B, self.C))
        return (A, torch.view_as_complex(self.P), B, C, self.log_dt.exp()) if self.kind == 'dplr' else (A, B, C, self.log_dt.exp())

    def forward(self, L, fast=True):
        "The kernel, or its float64 oracle."
        if self.kind == 'dplr': return (dplr_kernel if fast else dplr_kernel_loop)(*self.args(), L)
        return (diag_kernel if fast else diag_kernel_loop)(*self.args(), L, self.kind.split('-')[1])

def grads_finite(model): return all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())

# steps far outside anything sensible (TRAPS 1)

@pytest.mark.parametrize('log_dt', (-20, 10))
@pytest.mark.parametrize('kind', kinds)
def test_extreme_steps_give_the_right_kernel(kind, log_dt):
    for L in (1, 2, 50):
        model = Toy(kind, log_dt=log_dt)
        K = model(L)
        assert rel_err(K, model(L, fast=False)) < 1e-4, L
        (K/K.abs().max().detach()).square().sum().backward()
        assert grads_finite(model), L

@pytest.mark.parametrize('log_dt', (-100, -40, 5, 20, 40, 88))
@pytest.mark.parametrize('kind', kinds)
def test_any_step_stays_finite(kind, log_dt):
    for L in (1, 50, 3000):
        model = Toy(kind, log_dt=log_dt)
        K = model(L)
        K.square().sum().backward()
        assert torch.isfinite(K).all() and grads_finite(model), L

@pytest.mark.parametrize('kind', kinds)
def test_gradients_at_extreme_steps(kind):
    "Against float64 autograd through the oracle, each parameter for itself."
    for log_dt in (-20, -12, 3, 10):
        narrow, wide = Toy(kind, log_dt=log_dt), Toy(kind, log_dt=log_dt, dtype=torch.float64)
        scale = wide(20, fast=False).abs().max().detach()
        (narrow(20)/scale.float()).square().sum().backward()
        (wide(20, fast=False)/scale).square().sum().backward()
        for (n, p), q in zip(narrow.named_parameters(), wide.parameters()):
            # phases of a million radians and differences of nearly equal terms leave float32 few digits; what is far below the loss itself has none
            if q.grad.abs().max() > 1e-2: assert rel_err(p.grad, q.grad) < 1e-2, (n, log_dt)

def test_a_state_the_bilinear_rule_wipes_out():
    "A = -1, dt = 2: `A_bar` is exactly 0, so the kernel is `C B_bar` at lag 0 and nothing after."
    # an imaginary part whose square underflows is as good as none
    for dtype, imag in ((torch.float32, 0.), (torch.float32, 1e-19), (torch.float64, 0.), (torch.float64, 1e-155)):
        args = [torch.tensor(v, dtype=dtype).requires_grad_() for v in ([[[-1., imag]]], [[[3., 1]]], [[[[2., -1]]]], [2.])]
        K = diag_kernel(*args, 6, 'bilinear')
        assert rel_err(K, torch.tensor([[[14., 0, 0, 0, 0, 0]]])) < 1e-6    # 2 Re((2-i)(3+i))
        K.square().sum().backward()
        assert all(torch.isfinite(o.grad).all() for o in args)
    # and close to it the oracle agrees: the textbook's powers of a small number
    for eps in (1e-1, 1e-3, 1e-6, 2e-7, -2e-7, -1e-3):
        dt = torch.tensor([2+eps])
        z = -dt.double()/2
        a, b = (1+z)/(1-z), dt.double()/(1-z)
        K = diag_kernel(torch.tensor([[-1+0j]]), torch.tensor([[1+0j]]), torch.tensor([[[1+0j]]]), dt, 4, 'bilinear')
        assert rel_err(K.flatten(), 2*b*a**torch.arange(4)) < 1e-6
        assert abs(K[0, 0, 1].item()/(2*a*b).item()-1) < 1e-4, eps

@pytest.mark.parametrize('disc', list(discs))
def test_eigenvalues_at_and_near_zero(disc):
    "`A = 0` integrates: `2 C B dt` at every lag; a purely imaginary one never decays."
    for size in (0., 1e-30, 1e-12, 1e-6):
        args = [torch.tensor(v).requires_grad_() for v in ([[[-size, size]]], [[[1., 0]]], [[[[1., 0]]]], [.3])]
        K = diag_kernel(*args, 5, disc)
        assert rel_err(K, torch.full((1, 1, 5), .6)) < 1e-5
        K.sum().backward()
        assert all(torch.isfinite(o.grad).all() for o in args)
        # dK_l/dRe(A) = 2 dt^2 (l + 1/2): the bilinear rule and the hold agree to this order
        assert abs(args[0].grad[0, 0, 0].item() - 2*.09*(10+2.5)) < 1e-3
    K = diag_kernel(torch.tensor([[0+3j]]), torch.tensor([[1+0j]]), torch.tensor([[[1+0j]]]), torch.tensor([.1]), 1000, disc)
    assert rel_err(K, diag_kernel_loop(torch.tensor([[0+3j]]), torch.tensor([[1+0j]]), torch.tensor([[[1+0j]]]), torch.tensor([.1]), 1000, disc)) < 1e-4

@pytest.mark.parametrize('kind', kinds)
def test_200_adam_steps(kind):
    "A large learning rate on every parameter, the step included: finite throughout, no discarded imaginary part, and the fit improves (TRAPS 1, 6)."
    model, t = Toy(kind, ch=1), torch.linspace(0, 1, 100)
    target = torch.stack([torch.exp(-2*t)*torch.cos(9*t), t.exp()-1, torch.sin(20*t)])[None]
    opt, losses = torch.optim.Adam(model.parameters(), lr=1e-2), []
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for i in range(200):
            loss = (model(100)-target).square().mean()
            opt.zero_grad()
            loss.backward()
            assert torch.isfinite(loss) and grads_finite(model), i
            if i == 0: assert model.freq.grad.abs().max() > 0
            opt.step()
            losses.append(loss.item())
    assert all(torch.isfinite(p).all() for p in model.parameters()) and losses[-1] < .8*losses[0]

# lengths and precision (TRAPS 3, 22)

@pytest.mark.parametrize('kind', kinds)
def test_every_length_and_every_gradient(kind):
    for L in lengths:
        narrow, wide = Toy(kind), Toy(kind, dtype=torch.float64)
        g = torch.randn(2, 3, L, generator=torch.Generator().manual_seed(L))
        K, want = narrow(L), wide(L, fast=False)
        assert K.shape == (2, 3, L) and rel_err(K, want) < 1e-5
        (K*g).sum().backward()
        (want*g).sum().backward()
        for (n, p), q in zip(narrow.named_parameters(), wide.parameters()): assert rel_err(p.grad, q.grad) < 1e-3, (L, n)

@pytest.mark.parametrize('kind', ['lin-zoh', 'lin-bilinear', 'inv-bilinear', 'dplr'])
def test_long_kernels_keep_their_digits(kind):
    "65,536 steps so small that `A_bar` is within rounding of 1: an error in it would be multiplied by the length."
    for log_dt in (-14, -11, -8):
        K, want = Toy(kind, log_dt=log_dt)(65536), Toy(kind, log_dt=log_dt, dtype=torch.float64)(65536)
        assert rel_err(K, want) < 1e-4, log_dt

@pytest.mark.parametrize('decay', [0., 1e-4])
@pytest.mark.parametrize('disc', list(discs))
def test_slow_decays_keep_their_phase(disc, decay):
    "Nothing fades, so the far end counts: an angle rounded to float32 before it is multiplied by the lag is 1e-3 off at 16,384."
    model = Toy(f'lin-{disc}', log_dt=-2.3)
    A, B, C, dt = (o.detach() for o in model.args())
    args = torch.complex(torch.full_like(A.real, -decay), A.imag), B, C, dt
    wide = [o.to(torch.complex128 if o.is_complex() else torch.float64) for o in args]
    assert rel_err(diag_kernel(*args, 16384, disc), diag_kernel_vandermonde(*wide, 16384, disc)) < 5e-6

@pytest.mark.parametrize('kind', ['lin-zoh', 'lin-bilinear', 'dplr'])
def test_second_derivatives_are_refused(kind):
    "Written-out ways back have no second derivative: an error, not a wrong number."
    model = Toy(kind)
    for p in model.parameters():
        with pytest.raises(RuntimeError, match='first derivative only'): torch.autograd.grad(model(20).sum(), p, create_graph=True)

@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_gradient_where_the_bilinear_rule_wipes_out(dtype):
    "A_bar = 0 has no logarithm, but the kernel has a derivative there: the textbook's."
    grads = []
    for fast in (True, False):
        A, dt = torch.tensor([[-1+0j]], dtype=torch.complex64).to(torch.promote_types(dtype, torch.complex64)).requires_grad_(), torch.tensor([2.], dtype=dtype).requires_grad_()
        one, z = torch.ones_like(A.detach()), A*dt[:, None]/2
        K = diag_kernel(A, one, one[None], dt, 6, 'bilinear') if fast else 2*torch.stack([dt/(1-z)*((1+z)/(1-z))**l for l in range(6)], -1).real
        grads.append(torch.autograd.grad((K.flatten()*torch.arange(1, 7)).sum(), (A, dt)))
    for got, want in zip(*grads): assert rel_err(got, want) < 1e-5

@pytest.mark.parametrize('kind', ['lin-zoh', 'lin-bilinear', 'dplr'])
def test_autocast_changes_nothing(kind):
    for dtype in (torch.bfloat16, torch.float16):
        plain, cast = Toy(kind), Toy(kind)
        K = plain(100)
        K.square().sum().backward()
        with torch.autocast('cpu', dtype=dtype):
            got = cast(100)
            got.square().sum().backward()
        assert got.dtype == torch.float32 and torch.equal(got, K)
        for p, q in zip(plain.parameters(), cast.parameters()): assert rel_err(q.grad, p.grad) < 1e-5

def test_half_precision_is_refused():
    A, B, C, dt = (o.detach() for o in Toy('lin-zoh').args())
    P, pair = B, torch.view_as_real(A)
    for half in (torch.bfloat16, torch.float16):
        for f, args in ((diag_kernel, (A, B, C)), (dplr_kernel, (A, P, B, C)), (diag_kernel_vandermonde, (A, B, C))):
            with pytest.raises(TypeError, match='dt is .*stays in float32 or float64'): f(*args, dt.to(half), 10)
        with pytest.raises(TypeError, match='A is .*stays in float32 or float64'): diag_kernel(pair.to(half), B, C, dt, 10)

@pytest.mark.parametrize('f, named', [(diag_kernel, 'ABC'), (diag_kernel_vandermonde, 'ABC'), (dplr_kernel, 'APBC')])
def test_errors_name_the_argument(f, named):
    model = Toy('dplr')
    good = dict(zip('APBC', model.args()), dt=model.args()[-1], L=10)
    good = {k: good[k] for k in (*named, 'dt', 'L')}
    f(*good.values())
    for name, bad in dict(A=good['A'].real, B=good['B'][:2], C=good['C'][0], dt=good['dt'][:, None], L=2.).items():
        with pytest.raises(ValueError, match=f'^{name} must be'): f(*{**good, name: bad}.values())
    for bad in (0, -1, True):
        with pytest.raises(ValueError, match='L must be'): f(*{**good, 'L': bad}.values())
    for name in (*named, 'dt'):
        for bad in (.1, good[name].detach().numpy()):
            with pytest.raises(TypeError, match=f'^{name} must be a tensor'): f(*{**good, name: bad}.values())
    with pytest.raises(TypeError, match='dt must be a tensor'): f(*[.1]*(len(named)+1), 10)

# memory (TRAPS 24): no tensor of H*N*L numbers, and twice the length at most twice the largest

class Watch(TorchDispatchMode):
    "Every operation that runs: its name, and the types and sizes of the tensors it makes."
    def __init__(self):
        super().__init__()
        self.seen = []
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for o in torch.utils._pytree.tree_leaves(out):
            # an expanded tensor holds no more than its storage
            if isinstance(o, torch.Tensor): self.seen.append((func.name(), o.dtype, o.untyped_storage().nbytes()//o.element_size()))
        return out

def largest(f, L):
    "Numbers in the largest tensor made forward and backward."
    with Watch() as w: f(L).square().sum().backward()
    return max(o[2] for o in w.seen)

@pytest.mark.parametrize('kind', ['lin-zoh', 'lin-bilinear', 'dplr', 'scan'])
def test_memory_is_linear(kind):
    H, N, ch = 4, 32, 2
    model = Toy('lin-zoh' if kind == 'scan' else kind, H=H, N=N, ch=ch)
    def f(L):
        if kind != 'scan': return model(L)
        A, B, C, dt = model.args()
        return diag_scan(torch.randn(2, H, L), *(torch.view_as_real(o) for o in (A, B, C)), dt)
    sizes = [largest(f, L) for L in (8192, 16384)]
    # ten times the kernel (or, for the scan, the output) is a generous bound; H*N*L would be 16 times it
    assert sizes[1] < 2.2*sizes[0] and sizes[1] < (10 if kind != 'scan' else 5)*ch*H*16384/(1 if kind != 'scan' else .5)
    assert largest(lambda L: diag_kernel_vandermonde(*Toy('lin-zoh', H=H, N=N, ch=ch).args(), L), 1024) >= H*N*1024   # the watch would see one

# steps against convolution (TRAPS 30)

@pytest.mark.parametrize('kind', kinds)
def test_steps_equal_convolution(kind):
    model, L = Toy(kind), 200
    for trained in (False, True):
        if trained:
            opt = torch.optim.Adam(model.parameters(), lr=1e-2)
            model(L).square().mean().backward()
            opt.step()
        with torch.no_grad():
            u, K = torch.randn(2, 3, L, generator=torch.Generator().manual_seed(1)), model(L)
            a, b, C = dplr_step(*model.args()) if kind == 'dplr' else diag_step(*model.args(), kind.split('-')[1])
            x, ys = torch.zeros(2, *b.shape, dtype=b.dtype), []
            for t in range(L):
                x = ((a@x[..., None])[..., 0] if kind == 'dplr' else a*x) + b*u[..., t, None]
                y = (C[:, None]*x).sum(-1)
                ys.append(y if kind == 'dplr' else 2*y.real)
        for y, k in zip(torch.stack(ys, -1), K): assert rel_err(y, long_conv(u, k)) < 1e-5

# no FFT, no complex numbers (TRAPS 8)

@pytest.mark.parametrize('kind', kinds[:-1])
def test_scan_needs_no_complex_numbers(kind):
    model, disc, L = Toy(kind), kind.split('-')[1], 200
    u = torch.randn(2, 3, L, requires_grad=True)
    A, B, C, dt = model.args()
    pairs = [torch.view_as_real(o.detach()).clone().requires_grad_() for o in (A, B, C)]+[dt.detach().clone().requires_grad_()]
    want = torch.stack([long_conv(u, k) for k in diag_kernel(*pairs, L, disc)], 1)
    g = torch.randn_like(want)
    want_grads = torch.autograd.grad(want, [u, *pairs], g)
    with Watch() as w:
        y = diag_scan(u, *pairs, disc)
        grads = torch.autograd.grad(y, [u, *pairs], g)
    assert len(w.seen) > 50 and not [o for o in w.seen if o[1].is_complex or 'fft' in o[0] or 'complex' in o[0]]
    assert rel_err(y, want) < 1e-5
    for got, o in zip(grads, want_grads): assert rel_err(got, o) < 1e-4
    with Watch() as w: long_conv(u, diag_kernel(A, B, C, dt, L, disc)[0])
    assert [o for o in w.seen if o[1].is_complex] and [o for o in w.seen if 'fft' in o[0]]    # the watch would see them

@pytest.mark.parametrize('kind', ['lin-zoh', 'lin-bilinear', 'dplr'])
def test_kernels_of_real_pairs_make_no_complex_numbers(kind):
    model = Toy(kind)
    args = [o.detach() for o in model.args()]
    pairs = [(torch.view_as_real(o).clone() if o.is_complex() else o.clone()).requires_grad_() for o in args]
    f = (lambda *a: dplr_kernel(*a, 100)) if kind == 'dplr' else lambda *a: diag_kernel(*a, 100, kind.split('-')[1])
    with Watch() as w:
        K = f(*pairs)
        K.square().sum().backward()
    assert torch.equal(K, f(*args)) and not [o for o in w.seen if o[1].is_complex]

def test_importing_loads_no_compiler():
    code = "import sys, lrpt_nb.ssm; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, '-c', code]).returncode == 0
