"TRAPS 1, 2, 3, 6, 7, 8, 10, 11, 13, 20, 22, 24, 25, 30, 31, 32 for DSS, DLR, LRU and S5, their float64 oracle, and DLR's published sizes."
import math, warnings
from functools import partial
import pytest
from toys import *
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from lrpt_nb.core import rel_err
from lrpt_nb.lrnn import DLR, DSS, LRU, S5, dlr_inits, dlr_kernel, dlr_kernel_loop, mimo_scan, mimo_scan_loop
from lrpt_nb.objectives import real_positions
from lrpt_nb.s4 import S4D, set_rate
from lrpt_nb.ssm import diag_inits, discs

layers = dict(dss=partial(DSS, d_state=8), dlr=partial(DLR, d_state=24), dlr_random=partial(DLR, d_state=24, init='random'), lru=partial(LRU, d_state=8),
              s5=partial(S5, d_state=16), s5_bilinear=partial(S5, d_state=16, blocks=2, disc='bilinear'))
each_layer = pytest.mark.parametrize('layer', layers.values(), ids=layers)
each_way = pytest.mark.parametrize('causal', ways.values(), ids=ways)
L, LENGTHS, D = 24, (24, 1, 2, 7, 17), 6

def make(layer, causal=False, seed=0, **settings):
    torch.manual_seed(seed)
    return layer(D, causal=causal, **settings)

class Stack(nn.Module):
    "Four residual layers."
    def __init__(self, layer, causal, depth=4):
        super().__init__()
        self.layers = nn.ModuleList(make(layer, causal, i) for i in range(depth))
    def forward(self, x, lengths=None):
        for o in self.layers: x = x + o(x, lengths)
        return x

def rows(length=L, n=len(LENGTHS), seed=1):
    torch.manual_seed(seed)
    return torch.randn(n, length, D)

# what each layer is, from its parameters by the formulas of the papers

def cplx(p): return torch.complex(*p.double().unbind(-1))

def steps(layer):
    "`(a, b, C)`: `h = a*h + b*u` or `b@u`, `y = Re(C h)`, in complex128."
    p = {k: v.double() for k, v in layer.named_parameters()}
    if isinstance(layer, DLR): return torch.exp(torch.complex(-p['root_decay']**2, p['freq'])), torch.ones(()), cplx(layer.W)
    if isinstance(layer, LRU):
        return torch.exp(torch.complex(-p['log_nu'].exp(), p['log_theta'].exp())), p['log_gamma'].exp()[:, None]*cplx(layer.B), cplx(layer.C)
    A, dt = torch.complex(-p['log_decay'].exp(), p['freq']), layer.rate*p['log_dt'].exp()
    if isinstance(layer, DSS): dt = dt[:, None]
    if layer.disc == 'zoh': a, gain = torch.exp(dt*A), (torch.exp(dt*A)-1)/A
    else: a, gain = (1+dt*A/2)/(1-dt*A/2), dt/(1-dt*A/2)
    # half of the spectrum is written: twice the real part
    return (a, gain, 2*cplx(layer.C)) if isinstance(layer, DSS) else (a, gain[:, None]*cplx(layer.B), 2*cplx(layer.C))

def oracle(layer, x):
    "The whole layer in float64, step by step."
    (a, b, C), x = steps(layer), x.double()
    mimo = isinstance(layer, (LRU, S5))
    drive = x.to(b.dtype)@b.mT if mimo else b*x[..., None]
    def read(C, h): return (h@C.mT if mimo else (C*h).sum(-1)).real
    h, out = 0, [0]*x.shape[1]
    for t in range(x.shape[1]):
        h = a*h + drive[:, t]
        out[t] = read(C[0], h)
    if not layer.causal:
        h = drive[:, -1]
        for t in reversed(range(x.shape[1]-1)):
            out[t] = out[t] + read(C[1], h)
            h = a*h + drive[:, t]
    y = nn.functional.gelu(torch.stack(out, 1) + x*layer.skip.double())
    y = y@layer.out.weight.double().mT + layer.out.bias.double()
    return y[..., :D]*y[..., D:].sigmoid()

@each_layer
@each_way
@pytest.mark.parametrize('length', (1, 2, 3, 7, 31, 33, 63, 65, 100, 1000))
def test_any_length_equals_the_oracle_with_all_gradients(layer, causal, length):
    "TRAP 22: in float64 to rounding, in float32 closely."
    f, x = make(layer, causal), rows(length, 2)
    assert rel_err(f(x), oracle(f, x)) < 1e-4
    f, x = f.double(), x.double().requires_grad_()
    to, inputs = torch.randn(2, length, D).double(), [x, *f.parameters()]
    got, want = f(x), oracle(f, x)
    assert rel_err(got, want) < 1e-9
    # one position has no past: its decays may have no gradient
    got, want = (torch.autograd.grad((o*to).sum(), inputs, allow_unused=True, materialize_grads=True) for o in (got, want))
    for g, w in zip(got, want): assert (g-w).norm() < 1e-7*(1+w.norm())

@pytest.mark.parametrize('pair', (False, True))
def test_scan_on_and_near_the_unit_circle(pair):
    "TRAP 25: moduli 0.999 and 1, random phase, loss on the last (and, from behind, the first) step only."
    for size in (.999, 1.):
        torch.manual_seed(0)
        a = torch.view_as_real(torch.polar(torch.full((4,), size).double(), 6.28*torch.rand(4).double()))
        args = [o.double().requires_grad_() for o in (torch.randn(2, 3, 700), a, torch.randn(4, 3, 2), torch.randn(2, 3, 4, 2), torch.randn(2, 4, 2))]
        for at in (0, -1):
            grads = [torch.autograd.grad(y[..., at].square().sum(), args, materialize_grads=True, allow_unused=True) for y in (mimo_scan(*args, pair)[0], mimo_scan_loop(*args))]
            for got, want in zip(*grads): assert rel_err(got, want) < 1e-9

# DLR's kernel

@pytest.mark.parametrize('init', list(dlr_inits))
def test_long_dlr_kernels_keep_their_phases(init):
    "16,384 steps of up to 6 radians: forward and backward as close to float64 as float32 allows."
    torch.manual_seed(0)
    f = DLR(3, d_state=64, dt_max=1e-3, init=init)
    A, W = (o.detach() for o in f.pairs().values())
    leaves = [o.clone().requires_grad_() for o in (A, W)]
    wide = [o.double().requires_grad_() for o in (A, W)]
    g = torch.randn(2, 3, 16384)
    K, want = dlr_kernel(*leaves, 16384), dlr_kernel(*wide, 16384)
    assert rel_err(want[..., -50:], (torch.exp(torch.complex(*wide[0].unbind(-1))[:, None]*torch.arange(16384-50, 16384)) * cplx(wide[1])[..., None]).sum(-2).real) < 1e-9
    assert rel_err(K, want) < 1e-5
    (K*g).sum().backward()
    (want*g).sum().backward()
    for got, w in zip(leaves, wide): assert rel_err(got.grad, w.grad) < 1e-4

class Watch(TorchDispatchMode):
    "The largest tensor made, and every type."
    def __init__(self):
        super().__init__()
        self.most,self.dtypes = 0,set()
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for o in torch.utils._pytree.tree_leaves(out):
            if isinstance(o, torch.Tensor): self.most = max(self.most, o.untyped_storage().nbytes()//o.element_size()); self.dtypes.add(o.dtype)
        return out

def test_no_table_of_all_powers():
    "TRAP 24: neither forward nor backward does anything of N*L numbers exist."
    A, W = (o.detach().requires_grad_() for o in DLR(2, d_state=512).pairs().values())
    for length in (4096, 16384):
        with Watch() as w: dlr_kernel(A, W, length).square().sum().backward()
        assert w.most <= 2*512*256
    assert not any(o.is_complex for o in w.dtypes)

@pytest.mark.parametrize('needs', ((True, False), (False, True)))
def test_frozen_parts_get_no_gradient(needs):
    torch.manual_seed(0)
    args = [o.double().requires_grad_(n) for o, n in zip((torch.randn(3, 2)-torch.tensor([2, 0]), torch.randn(2, 3, 2)), needs)]
    grads = [torch.autograd.grad(f(*args, 300).square().sum(), [o for o in args if o.requires_grad]) for f in (dlr_kernel, dlr_kernel_loop)]
    for got, want in zip(*grads): assert rel_err(got, want) < 1e-9

# padding, future (TRAPS 13, 20, 31)

@each_layer
@each_way
@pytest.mark.parametrize('junk', (0., 1e3))
def test_a_padded_row_equals_the_row_alone(layer, causal, junk):
    f, lengths, x = Stack(layer, causal), torch.tensor(LENGTHS), rows()
    x = torch.where(real_positions(x, lengths)[..., None], x, junk)
    with torch.no_grad():
        out = f(x, lengths)
        assert torch.isfinite(out).all()
        for i, n in enumerate(LENGTHS): assert rel_err(out[i, :n], f(x[i:i+1, :n])[0]) < 1e-5

@each_layer
@each_way
def test_padding_has_no_gradient_whatever_memory_held(layer, causal):
    f, lengths, x = Stack(layer, causal), torch.tensor(LENGTHS), rows().requires_grad_()
    real = real_positions(x, lengths)
    torch.use_deterministic_algorithms(True)                  # fills what `empty` returns with NaN
    try: f(x, lengths)[real].square().sum().backward()
    finally: torch.use_deterministic_algorithms(False)
    assert x.grad[~real].abs().max() == 0 and torch.isfinite(x.grad).all()
    assert x.grad[real].abs().amax(-1).min() > 0
    assert all(torch.isfinite(p.grad).all() and p.grad.abs().sum() > 0 for p in f.parameters())

@each_layer
def test_causal_layers_do_not_see_the_future(layer):
    x = rows(100, 2)
    late = x.clone(); late[:, 41:] += 100
    for causal in (False, True):
        f = Stack(layer, causal)
        # a scan touches later inputs with no number of the past; a transform of the whole leaves its rounding
        with torch.no_grad(): assert (rel_err(f(late)[:, :41], f(x)[:, :41]) < 1e-3) == causal
    for f in f.double().layers:
        with torch.no_grad(): assert rel_err(f(late.double())[:, :41], f(x.double())[:, :41]) < 1e-12

# step by step and in pieces (TRAPS 30, 32)

@each_layer
def test_steps_and_pieces_equal_the_whole(layer):
    f, x = Stack(layer, True), rows(200, 2)
    for trained in (False, True):
        if trained:
            opt = torch.optim.Adam(f.parameters(), 1e-2)
            (f(x)-x.roll(1, 1)).square().mean().backward()
            opt.step()
        with torch.no_grad():
            whole = f(x)
            for cuts in ((50,)*4, (1, 199), (130, 70), (1,)*200):
                states, parts = [None]*4, []
                for part in x.split(cuts, 1):
                    for i, o in enumerate(f.layers):
                        y, states[i] = o.extend(part, states[i]) if len(cuts) < 200 else o.step(part[:, 0], states[i])
                        part = part + y.view(part.shape)
                    parts.append(part)
                assert rel_err(torch.cat(parts, 1), whole) < 1e-5
    for o in Stack(layer, False, 1).layers:
        for call in (lambda: o.step(x[:, 0]), lambda: o.extend(x)):
            with pytest.raises(ValueError, match='causal=False looks ahead'): call()

@each_layer
def test_gradients_pass_through_the_state(layer):
    f, x = make(layer, True).double(), rows(90, 2).double()
    grads = []
    for pieces in (False, True):
        f.zero_grad()
        if pieces:
            first, state = f.extend(x[:, :40])
            y = torch.cat([first, f.extend(x[:, 40:], state)[0]], 1)
        else: y = f(x)
        y.sin().sum().backward()
        grads.append([p.grad.clone() for p in f.parameters()])
    for got, want in zip(*grads): assert rel_err(got, want) < 1e-9

def test_sampling_rate():
    "A rate of 2 is every step doubled; layers without a step size refuse, alone or among others."
    for name in ('dss', 's5', 's5_bilinear'):
        f, twice = make(layers[name]), make(layers[name])
        with torch.no_grad(): twice.log_dt += math.log(2)
        assert rel_err(set_rate(f, 2.)(rows()), twice(rows())) < 1e-5 < rel_err(f(rows()), make(layers[name])(rows()))
        assert rel_err(f(rows()), oracle(f, rows())) < 1e-4
    for name in ('dlr', 'lru'):
        for f in (make(layers[name]), nn.Sequential(S4D(4), make(layers[name]))):
            with pytest.raises(ValueError, match=f'{name.upper()} has no step size'): set_rate(f, 2.)
        assert set_rate(make(layers[name]), 1.).rate == 1

# numerics (TRAPS 1, 2, 3, 6, 10, 11)

@each_layer
@each_way
@pytest.mark.parametrize('half', (False, True), ids=('full', 'autocast'))
def test_two_hundred_rough_steps_stay_finite(layer, causal, half):
    torch.manual_seed(0)
    f, x = nn.Sequential(make(layer, causal), nn.Linear(D, D)), rows()
    opt, losses = torch.optim.Adam(f.parameters(), 1e-2), []
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for _ in range(200):
            with torch.autocast('cpu', torch.bfloat16, enabled=half): loss = (f(x)-x.roll(1, 1)).square().mean()
            opt.zero_grad(); loss.backward(); opt.step()
            losses.append(loss.item())
    assert all(map(math.isfinite, losses)) and losses[-1] < .8*losses[0]
    assert all(torch.isfinite(p).all() for p in f.parameters())

@each_layer
@each_way
@pytest.mark.parametrize('value', (-100., -20., 10., 30., 80.))
def test_absurd_spectra_stay_finite(layer, causal, value):
    "Each parameter that shapes time by itself, and all at once."
    names = [o for o in make(layer).no_decay if o not in ('C', 'W')]
    for chosen in (*([o] for o in names), names):
        if layer is layers['dss'] and chosen is names and value > 30: continue       # as far as S4D goes
        f = make(layer, causal)
        for name in chosen: nn.init.constant_(getattr(f, name), value)
        if isinstance(f, LRU) and value > 30: nn.init.constant_(f.log_gamma, 0)     # a gain is no time scale: it may grow beyond float32
        out = f(rows(300, 2))
        out.square().sum().backward()
        assert torch.isfinite(out).all(), chosen
        for n, p in f.named_parameters(): assert torch.isfinite(p.grad).all(), (chosen, n)

@each_layer
@each_way
def test_nothing_complex_and_every_part_learns(layer, causal):
    f = make(layer, causal)
    assert not any(o.is_complex() for o in [*f.parameters(), *f.buffers()])
    f(rows()).square().sum().backward()
    for n, p in f.named_parameters(): assert p.grad.abs().sum() > 0, n
    for p in (getattr(f, n, None) for n in 'BCW'):
        if isinstance(p, nn.Parameter): assert (p.grad.abs().flatten(0, -2).sum(0) > 0).all()     # real and imaginary part
    spared = {n for n in f.no_decay}
    assert spared <= {n for n, _ in f.named_parameters()} and not spared & {'skip', 'out.weight', 'out.bias', 'B'}

@each_layer
@each_way
def test_half_precision(layer, causal):
    f, x = make(layer, causal), rows(1000, 2)
    with torch.no_grad():
        u = x.transpose(1, 2)
        want = f.filter(u)
        for kind in (torch.bfloat16, torch.float16):
            with torch.autocast('cpu', kind):
                assert torch.equal(f.filter(u), want)
                assert torch.isfinite(f(x)).all() and rel_err(f(x), oracle(f, x)) < .05
        whole = oracle(f, x)
        got = f.bfloat16()(x.bfloat16())                # what shapes time stays as it was, so it is close to the layer before the cast
        assert got.dtype == torch.bfloat16 and rel_err(got.float(), whole) < .02

def test_autocast_gradients():
    for layer in layers.values():
        grads = []
        for half in (False, True):
            f = make(layer)
            with torch.autocast('cpu', torch.bfloat16, enabled=half): y = f.filter(rows(70, 2).transpose(1, 2))
            y.square().sum().backward()
            grads.append([p.grad for p in f.parameters() if p.grad is not None])
        for got, want in zip(*grads): assert rel_err(got, want) < 1e-6

def test_beginnings():
    "TRAP 11: steps, decays and radii inside their ranges right after building."
    for f in (DSS(200), S5(4, d_state=400), DSS(200, dt_min=.01, dt_max=.02), S5(4, d_state=400, dt_min=.01, dt_max=.02)):
        lo, hi = (.01, .02) if f.log_dt.exp().min() > .009 else (1e-3, .1)
        dt = f.log_dt.exp()
        assert lo*(1-1e-5) <= dt.min() < 1.2*lo and .8*hi < dt.max() <= hi*(1+1e-5)
    decay = DLR(4).root_decay.square()*2
    assert 1e-4*(1-1e-5) <= decay.min() < 1.2e-4 and .08 < decay.max() <= .1*(1+1e-5)
    size = cplx(LRU(4, d_state=1000).pairs()['a']).abs()
    assert .9-1e-6 <= size.min() < .905 and .998 < size.max() <= .999+1e-6
    for weights, std in ((2*DSS(100).C, 1), (1024*DLR(20).W, 1), (LRU(100).B, .005**.5), (LRU(100).C, (1/64)**.5), (S5(100).B, .005**.5), (S5(100).C, (1/64)**.5)):
        assert .97*std < weights.std() < 1.03*std
    assert len(S5(4, d_state=64).freq.unique()) == 32 and len(S5(4, d_state=64, blocks=4).freq.unique()) == 8

# memory (TRAP 24)

def kept(f):
    "Bytes of all storages that autograd holds on to after `f()`."
    seen = {}
    def pack(t):
        seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes(), t
        return t
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t): f()
    return sum(n for n, _ in seen.values())

@each_layer
@each_way
def test_memory_is_linear(layer, causal):
    f = make(layer, causal)
    sizes = [kept(lambda: f(rows(n, 2)))/n for n in (1024, 4096, 16384)]
    assert sizes[2] < 1.15*sizes[1] < 1.3*sizes[0]

@pytest.mark.parametrize('pair', (False, True))
def test_a_scan_keeps_its_states_once(pair):
    "Beside input and parameters: `N` complex numbers a step and direction."
    n, N = 3000, 5
    u, a, B, C = torch.randn(2, 3, n), torch.rand(N, 2)/2, torch.randn(N, 3, 2), torch.randn(2, 3, N, 2)
    leaves = [o.requires_grad_() for o in (a, B, C)]
    assert kept(lambda: mimo_scan(u, *leaves, None, pair)) <= 4*(1.05*2*(2*N*2*n) + u.numel())

# torch.compile, real arithmetic (TRAPS 7, 8)

@each_layer
@each_way
def test_compiled_equals_eager(layer, causal):
    f, x, g = make(layer, causal), rows(50, 2), torch.randn(2, 50, D)
    def outcome(run):
        f.zero_grad()
        y = run(x)
        y.backward(g)
        return [y.detach(), *(p.grad.clone() for p in f.parameters())]
    want = outcome(f)
    torch._dynamo.reset()
    for got, w in zip(outcome(torch.compile(f, backend='aot_eager')), want): assert rel_err(got, w) < 1e-4

@each_layer
@each_way
def test_real_arithmetic_equals_complex(layer, causal):
    f, x, outcomes = make(layer, causal), rows(150, 2), []
    for f.mode in ('auto', 'pair' if isinstance(f, (LRU, S5)) else 'scan'):
        f.zero_grad()
        with Watch() as w:
            y = f(x)
            y.square().sum().backward()
        outcomes.append([y, *(p.grad.clone() for p in f.parameters())])
    assert not any(o.is_complex for o in w.dtypes)
    for got, want in zip(*outcomes): assert rel_err(got, want) < 1e-4
    if causal:
        with torch.no_grad(): assert rel_err(torch.cat([f.extend(x[:, :70])[0], f.extend(x[:, 70:], f.extend(x[:, :70])[1])[0]], 1), y) < 1e-5

# arguments and sizes

@pytest.mark.parametrize('call,match', [
    (lambda: DSS(4, d_state=0), 'd_state must be an int of at least 1'), (lambda: DSS(4, init='x'), "init='x'"), (lambda: DSS(4, dt_min=1, dt_max=.1), 'dt_min=1'),
    (lambda: DLR(4, d_state=-1), 'd_state'), (lambda: DLR(4, init='x'), "init='x'"), (lambda: DLR(4, dt_min=1, dt_max=.1), 'dt_min=1'),
    (lambda: LRU(4, r_max=1.1), 'r_max=1.1'), (lambda: LRU(4, r_min=-.1), 'r_min=-0.1'), (lambda: LRU(4, max_phase=-1), 'max_phase'), (lambda: LRU(4, d_state=True), 'd_state'),
    (lambda: S5(4, d_state=3), 'd_state must be a multiple'), (lambda: S5(4, blocks=0), 'blocks must be'), (lambda: S5(4, disc='x'), "disc='x'"), (lambda: S5(4, dt_max=0), 'dt_max=0')])
def test_errors_name_the_argument(call, match):
    with pytest.raises(ValueError, match=match): call()

def test_every_name_of_a_choice_works():
    for f in (*(DSS(D, d_state=8, init=o) for o in diag_inits), *(S5(D, d_state=8, disc=o) for o in discs)):
        assert rel_err(f(rows()), oracle(f, rows())) < 1e-4

def count(m): return sum(p.numel() for p in m.parameters())

@pytest.mark.parametrize('d,depth,final,published', [
    (512, 6, True, 15_757_312),      # Image: norm before each block and one at the end
    (256, 6, True, 7_098_368),       # Text, PathX
    (128, 8, False, 4_477_952)])     # ListOps: norm after each block, none at the end
def test_published_sizes_of_dlr(d, depth, final, published):
    layer, N = DLR(d), 1024
    weights, spectrum, skip, gate = 2*d*N*2, 2*N, d, d*2*d + 2*d     # two directions, real and imaginary part; decay and frequency; D; d to 2d
    norm = 2*d
    assert count(layer) == weights + spectrum + skip + gate
    assert layer.W.numel() == weights and layer.W.numel() > .79*count(layer)
    assert depth*(count(layer) + norm) + final*norm == published

def test_sizes_of_the_others():
    d, N = 32, 64
    rest = d + d*2*d + 2*d                                           # skip and gate
    for causal, ch in ((True, 1), (False, 2)):
        assert count(DSS(d, causal)) == 2*N + d + ch*d*N*2 + rest
        assert count(LRU(d, causal)) == 3*N + 2*N*d + ch*2*d*N + rest
        assert count(S5(d, causal)) == 3*N//2 + N*d + ch*d*N + rest

def test_importing_loads_no_compiler():
    code = "import sys, lrpt_nb.lrnn; print([m for m in ('triton', 'numba', 'torch._dynamo') if m in sys.modules])"
    assert subprocess.run([sys.executable, '-W', 'ignore', '-c', code], capture_output=True, text=True).stdout.strip() == '[]'
