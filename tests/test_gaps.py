"TRAPS 1, 3, 6, 7, 8, 13, 20, 22, 24, 30, 31, 32 where samples are not evenly spaced: the layers that follow gaps, and every architecture with a time channel."
import math, warnings
from functools import partial
import pytest
from toys import *
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from lrpt_nb.core import rel_err, set_seed
from lrpt_nb.lrnn import DLR, DSS, LRU, MIMO, S5
from lrpt_nb.models import checkpoint_blocks
from lrpt_nb.objectives import real_positions
from lrpt_nb.s4 import S4, S4D, set_rate

layers = dict(s4d=partial(S4D, d_state=8), s4d_bilinear=partial(S4D, d_state=8, disc='bilinear'), dss=partial(DSS, d_state=4), dlr=partial(DLR, d_state=12),
              lru=partial(LRU, d_state=6), s5=partial(S5, d_state=12), s5_bilinear=partial(S5, d_state=12, blocks=2, disc='bilinear'))
each_layer = pytest.mark.parametrize('layer', layers.values(), ids=layers)
with_step = 's4d', 's4d_bilinear', 'dss', 's5', 's5_bilinear'
each_way = pytest.mark.parametrize('causal', ways.values(), ids=ways)
each_arch = pytest.mark.parametrize('arch', archs)
D = 4

def make(layer, causal=False, seed=0): torch.manual_seed(seed); return layer(D, causal=causal)
def series(L=24, B=2, seed=1, spread=2.):
    "Inputs and gaps, the latter from exp(-spread) to exp(spread)."
    torch.manual_seed(seed)
    return torch.randn(B, L, D), torch.empty(B, L).uniform_(-spread, spread).exp()

# what each layer is, from its parameters by the formulas of the papers and the length of each step

def cplx(p): return torch.complex(*p.double().unbind(-1))

def steps(layer):
    "`(step, C)`: `step(g)` gives decay and gain of a gap `g`, `(states)` or `(D, states)`."
    p = {k: v.double() for k, v in layer.named_parameters()}
    if isinstance(layer, DLR): return lambda g: (torch.exp(g*torch.complex(-p['root_decay']**2, p['freq'])), torch.ones(())), cplx(layer.W)
    if isinstance(layer, LRU): return lambda g: (torch.exp(g*torch.complex(-p['log_nu'].exp(), p['log_theta'].exp())), p['log_gamma'].exp()), cplx(layer.C)
    A, dt = torch.complex(-p['log_decay'].exp(), p['freq']), layer.rate*p['log_dt'].exp()
    if not isinstance(layer, S5): dt = dt[:, None]
    B = cplx(layer.B) if isinstance(layer, S4D) else 1
    def step(g):
        z = g*dt*A
        return (torch.exp(z), (torch.exp(z)-1)/A*B) if layer.disc == 'zoh' else ((1+z/2)/(1-z/2), g*dt/(1-z/2)*B)
    return step, 2*cplx(layer.C)

def oracle(layer, x, gaps):
    "The whole layer in float64, row by row, step by step."
    (step, C), mimo = steps(layer), isinstance(layer, MIMO)
    B = cplx(layer.B) if mimo else None
    def read(c, h): return ((c@h) if mimo else (c*h).sum(-1)).real
    rows = []
    for u, row in zip(x.double(), gaps.double()):
        h, out = 0, []
        def go(h, t):
            a, b = step(row[t])
            return a*h + b*(B@u[t].to(B.dtype) if mimo else u[t][:, None])
        for t in range(len(u)):
            h = go(h, t)
            out.append(read(C[0], h))
        h = torch.zeros_like(h)
        for t in reversed(range(0 if layer.causal else len(u))):
            out[t] = out[t] + read(C[1], h)                   # the state that has crossed gap t+1
            h = go(h, t)
        rows.append(torch.stack(out))
    y = nn.functional.gelu(torch.stack(rows) + x*layer.skip.double())
    y = y@layer.out.weight.double().mT + layer.out.bias.double()
    return y[..., :D]*y[..., D:].sigmoid()

@each_layer
@each_way
@pytest.mark.parametrize('length', (1, 2, 3, 7, 33, 100))
def test_any_length_equals_the_oracle_with_all_gradients(layer, causal, length):
    "TRAP 22: in float64 to rounding, in float32 closely; the gradient of the gaps too."
    f, (x, gaps) = make(layer, causal), series(length)
    assert rel_err(f(x, gaps=gaps), oracle(f, x, gaps)) < 1e-4
    f, x, gaps = f.double(), x.double().requires_grad_(), gaps.double().requires_grad_()
    to, inputs = torch.randn(x.shape).double(), [x, gaps, *f.parameters()]
    got, want = f(x, gaps=gaps), oracle(f, x, gaps)
    assert rel_err(got, want) < 1e-9
    got, want = (torch.autograd.grad((o*to).sum(), inputs, allow_unused=True, materialize_grads=True) for o in (got, want))
    for g, w in zip(got, want): assert (g-w).norm() < 1e-7*(1+w.norm())
    if length > 2: assert got[1].abs().sum() > 0

@each_layer
@each_way
def test_gradcheck(layer, causal):
    f, (x, gaps) = make(layer, causal).double(), series(5, 1)
    assert torch.autograd.gradcheck(lambda x, g: f(x, gaps=g), [o.double().requires_grad_() for o in (x, gaps)])

@each_layer
def test_gaps_of_four_orders_of_magnitude(layer):
    "As wide as the data layer gives them: a thousandth of the usual step to a thousand."
    f, (x, gaps) = make(layer), series(60, spread=math.log(1000))
    assert rel_err(f(x, gaps=gaps), oracle(f, x, gaps)) < 1e-4

# what gaps mean

@each_layer
@each_way
def test_gaps_of_one_change_nothing(layer, causal):
    f, (x, gaps) = make(layer, causal), series(200)
    assert rel_err(f(x, gaps=torch.ones_like(gaps)), f(x)) < 1e-5
    assert rel_err(f(x, gaps=gaps), f(x)) > 1e-2              # while others do

@pytest.mark.parametrize('name', with_step)
@each_way
@pytest.mark.parametrize('factor', (.5, 2., 7.))
def test_longer_gaps_are_a_slower_rate(name, causal, factor):
    f, (x, gaps) = make(layers[name], causal), series()
    want = set_rate(make(layers[name], causal), factor)(x, gaps=gaps)
    assert rel_err(f(x, gaps=factor*gaps), want) < 1e-5
    with torch.no_grad(): f.log_dt += math.log(factor)
    assert rel_err(f(x, gaps=gaps), want) < 1e-5

def without(x, gaps, i):
    "Position `i` left out, its time given to the next."
    keep, gaps = [t for t in range(x.shape[1]) if t != i], gaps.clone()
    gaps[:, i+1] += gaps[:, i]
    return keep, x[:, keep], gaps[:, keep]

@each_layer
@each_way
def test_a_missing_zero_is_time_that_passes(layer, causal):
    "A zero before a zero: the state decays for as long as both. With the bilinear rule that is so to third order in the step."
    f, (x, _) = make(layer, causal), series()
    if getattr(f, 'disc', 'zoh') == 'bilinear':
        with torch.no_grad(): f.log_dt -= math.log(100)
    x[:, 9:11] = 0
    for gaps in (torch.ones(2, 24), series()[1]):
        keep, short, longer = without(x, gaps, 9)
        want = f.filter(x.mT, gaps)[..., keep]
        err, ignored = (rel_err(f.filter(short.mT, g), want) for g in (longer, gaps[:, keep]))
        assert err < 1e-5 and ignored > 20*err

@pytest.mark.parametrize('name', ('s4d', 'dss', 's5'))
@each_way
def test_a_missing_sample_is_held_over(name, causal):
    "Zero-order hold: a sample like the next one says nothing new."
    f, (x, gaps) = make(layers[name], causal), series()
    x[:, 9] = x[:, 10]
    keep, short, longer = without(x, gaps, 9)
    assert rel_err(f(short, gaps=longer), f(x, gaps=gaps)[:, keep]) < 1e-5

@pytest.mark.parametrize('name', ('lru', 'dlr'))
def test_an_impulse_does_not_depend_on_the_gap_before_it(name):
    "Layers without a step size: any zero can be left out."
    f, (x, gaps) = make(layers[name], True), series()
    x[:, 9] = 0
    keep, short, longer = without(x, gaps, 9)
    assert rel_err(f(short, gaps=longer), f(x, gaps=gaps)[:, keep]) < 1e-5

@each_way
def test_random_times_give_what_even_ones_give(causal):
    "A smooth signal sampled at 800 random times of 1000 units: read with its gaps it is answered as on an even grid, read without them it is another signal."
    torch.manual_seed(0)
    f = S4D(1, causal=causal, d_state=8, dt_min=.01, dt_max=.01).double()
    times = torch.cat([torch.zeros(1), torch.rand(798).sort()[0]*1000, torch.full((1,), 1000.)]).double()
    gaps = torch.cat([torch.ones(1), times.diff()])[None]
    def signal(t): return torch.sin(t/40)[None, None]
    with torch.no_grad():
        even, before = f.filter(signal(torch.arange(1001).double()))[0, 0], times.long().clamp(max=999)
        want = torch.lerp(even[before], even[before+1], times-before)
        assert rel_err(f.filter(signal(times), gaps)[0, 0], want) < .05
        assert rel_err(f.filter(signal(times))[0, 0], want) > .3

# finite whatever the gap (TRAP 1)

@pytest.mark.parametrize('name, log_dt', [(o, None) for o in layers] + [(o, dt) for o in with_step for dt in (10., -20.)])
@each_way
@pytest.mark.parametrize('gap', (0., 1e-30, 1e-3, 1e3, 1e12, math.inf))
def test_absurd_gaps_are_finite(name, causal, gap, log_dt):
    f, (x, gaps) = make(layers[name], causal), series()
    if log_dt is not None: nn.init.constant_(f.log_dt, log_dt)
    gaps[:, 1::3] = gap
    gaps.requires_grad_(); x.requires_grad_()
    y = f(x, gaps=gaps)
    y.square().sum().backward()
    for o in (y, x.grad, gaps.grad, *(p.grad for p in f.parameters())): assert torch.isfinite(o).all()

@each_layer
def test_two_hundred_rough_steps_stay_finite(layer):
    f, (x, gaps) = make(layer), series(spread=math.log(1000))
    opt, losses = torch.optim.Adam(f.parameters(), 1e-2), []
    with warnings.catch_warnings():
        warnings.filterwarnings('error', message='Casting complex')       # TRAP 6
        for _ in range(200):
            loss = (f(x, gaps=gaps) - x.roll(1, 1)).square().mean()
            opt.zero_grad(); loss.backward(); opt.step()
            losses.append(loss.item())
    assert all(map(math.isfinite, losses)) and losses[-1] < losses[0] and all(torch.isfinite(p).all() for p in f.parameters())

# half precision (TRAP 3)

@each_layer
@each_way
def test_steps_and_states_stay_wide(layer, causal):
    f, (x, gaps) = make(layer, causal), series(300)
    with torch.no_grad():
        want = f(x, gaps=gaps)
        with torch.autocast('cpu', torch.bfloat16):
            got, u = f(x, gaps=gaps), f.filter(x.mT, gaps)
            assert u.dtype == torch.float32 and torch.equal(u, f.filter(x.mT, gaps)) and rel_err(u, make(layer, causal).filter(x.mT, gaps)) < 1e-6
        assert rel_err(u, f.filter(x.mT, gaps)) < 1e-6        # the same numbers as without
        assert rel_err(got, want) < .02
        rounded = make(layer, causal)
        half = f.bfloat16()
        rounded.load_state_dict({k: v.float() for k, v in half.state_dict().items()})
        assert half.filter(x.bfloat16().mT, gaps).dtype == torch.float32
        assert rel_err(half.filter(x.bfloat16().mT, gaps), rounded.filter(x.bfloat16().float().mT, gaps)) < 1e-5
        if causal: assert half.extend(x.bfloat16(), None, gaps.bfloat16())[1].dtype == torch.float32

# real arithmetic (TRAP 8), the compiler (TRAP 7), memory (TRAP 24)

class RealOnly(TorchDispatchMode):
    "Fails on any operation that takes or gives a complex tensor, and on any Fourier transform."
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        assert 'fft' not in str(func), func
        for o in torch.utils._pytree.tree_leaves((args, out)): assert not (isinstance(o, torch.Tensor) and o.is_complex()), func
        return out

@each_layer
@each_way
def test_real_arithmetic_gives_the_same(layer, causal):
    f, (x, gaps) = make(layer, causal), series()
    outcomes = []
    for f.mode in ('auto', 'pair' if isinstance(f, MIMO) else 'scan'):
        f.zero_grad()
        y = f(x, gaps=gaps)
        y.sin().sum().backward()
        outcomes.append([y] + [p.grad.clone() for p in f.parameters()])
    for got, want in zip(*outcomes): assert rel_err(got, want) < 1e-4
    with RealOnly(): f(x, gaps=gaps).sum().backward()

def body(arch, causal=False, n_layers=2, **kw):
    set_seed(0)
    return create_body(arch, d_in=3, d_model=16, n_layers=n_layers, causal=causal, time_channel=True, **kw)

def stamped(L=24, B=2, seed=1):
    "Two channels of values and one of log gaps."
    torch.manual_seed(seed)
    x = torch.randn(B, L, 3)
    x[:, 0, 2] = 0
    return x

follows = [o for o in archs if getattr(body(o).blocks[0].mixer, 'takes_gaps', False)]

def test_who_follows_gaps():
    "All diagonal ones; S4's dense step would be another matrix at every position, and the others have no step."
    assert set(follows) >= {'s4d', 'dss', 'dlr', 'lru', 's5'} and 's4' not in follows

@pytest.mark.parametrize('arch', follows)
@each_way
def test_compiled_equals_eager(arch, causal):
    f, x = body(arch, causal, 1), stamped()
    def outcome(g):
        f.zero_grad()
        y = g(x)
        y.square().sum().backward()
        return [y.detach(), *(p.grad.clone() for p in f.parameters() if p.grad is not None)]
    want = outcome(f)
    torch._dynamo.reset()
    for got, w in zip(outcome(torch.compile(f, backend='aot_eager')), want): assert rel_err(got, w) < 1e-4

def kept(f, x):
    "Bytes autograd keeps of one forward pass, each storage once."
    seen = {}
    def pack(t):
        seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t): y = f(x)
    return sum(seen.values())

@pytest.mark.parametrize('arch', follows)
@each_way
def test_memory_is_linear_in_the_length(arch, causal):
    f = body(arch, causal, 1, d_state=16)
    assert kept(f, stamped(4096)) < 2.2*kept(f, stamped(2048))

@each_way
def test_states_are_not_kept(causal):
    "What S4D keeps over gaps is what it keeps without, not its states: 16 numbers a position and channel."
    plain = create_body('s4d', d_in=3, d_model=64, n_layers=1, causal=causal, d_state=32)
    f = create_body('s4d', d_in=3, d_model=64, n_layers=1, causal=causal, d_state=32, time_channel=True)
    x = stamped(2048, 4)
    assert kept(f, x) < 1.5*kept(plain, x)

@pytest.mark.parametrize('arch', follows)
def test_computing_blocks_again_changes_nothing(arch):
    f, x, outcomes = body(arch), stamped(), []
    for on in (False, True):
        checkpoint_blocks(f, on).zero_grad()
        y = f(x)
        y.square().sum().backward()
        outcomes.append([y, *(p.grad.clone() for p in f.parameters() if p.grad is not None)])
    for got, want in zip(*outcomes): assert rel_err(got, want) < 1e-6

# padding (TRAPS 13, 20)

LENGTHS = (24, 1, 2, 7, 17)

@each_arch
@each_way
@pytest.mark.parametrize('junk', (0., 1e3, -1e3, math.nan))
def test_a_padded_row_equals_the_row_alone(arch, causal, junk):
    f, lengths, x = body(arch, causal, 4).eval(), torch.tensor(LENGTHS), stamped(B=5)
    x = torch.where(real_positions(x, lengths)[..., None], x, junk)
    with torch.no_grad():
        out = f(x, lengths)
        for i, n in enumerate(LENGTHS): assert rel_err(out[i, :n], f(x[i:i+1, :n])[0]) < 1e-5

@pytest.mark.parametrize('arch', follows)
@each_way
def test_gaps_in_the_padding_have_no_gradient_whatever_memory_held(arch, causal):
    f, lengths, x = body(arch, causal), torch.tensor(LENGTHS), stamped(B=5)
    real = real_positions(x, lengths)
    x = x.masked_fill(~real[..., None], 1e3).requires_grad_()
    torch.use_deterministic_algorithms(True)                  # fills what `empty` returns with NaN
    try: f(x, lengths)[real].square().sum().backward()
    finally: torch.use_deterministic_algorithms(False)
    assert x.grad[~real].abs().max() == 0 and torch.isfinite(x.grad).all()
    assert x.grad[real][:, 2].abs().min() > 0                 # while those of real positions have one
    assert all(torch.isfinite(p.grad).all() for p in f.parameters() if p.grad is not None)

# the future (TRAP 31)

@each_arch
@pytest.mark.parametrize('what', ('values', 'gaps', 'both'))
def test_a_causal_body_sees_neither_later_values_nor_later_gaps(arch, what):
    x = stamped(60)
    late, t = x.clone(), 40
    late[:, t:, {'values': slice(0, 2), 'gaps': slice(2, 3), 'both': slice(0, 3)}[what]] += 2
    with torch.no_grad():
        f = body(arch, True, 3).eval()
        assert rel_err(f(late)[:, :t], f(x)[:, :t]) < 2e-6
        assert rel_err(f(late)[:, t:], f(x)[:, t:]) > 1e-2
        if arch in follows:                                   # read as an input or not
            nn.init.zeros_(f.embed.time.weight)
            assert rel_err(f(late)[:, :t], f(x)[:, :t]) < 2e-6 < 1e-3 < rel_err(f(late)[:, t:], f(x)[:, t:])

@each_arch
def test_a_two_way_body_sees_both(arch):
    x = stamped(60)
    late = x.clone(); late[:, 40:, 2] += 1
    with torch.no_grad():
        f = body(arch).eval()
        assert (f(late)[:, :40]-f(x)[:, :40]).abs().amax((0, 2)).min() > 1e-6
        if arch in follows:
            nn.init.zeros_(f.embed.time.weight)
            assert (f(late)[:, 35:40]-f(x)[:, 35:40]).abs().amax((0, 2)).min() > 1e-6

@pytest.mark.parametrize('arch', follows)
def test_from_behind_a_gap_is_crossed_between_its_two_positions(arch):
    "The future that position `t` sees through gap `t+1` is not what `t+1` itself sees: changing that gap moves `t`, not the look ahead of `t+1`."
    f, (x, gaps) = layers[arch](D), series()
    with torch.no_grad():
        if arch == 'dlr': f.W[0] = 0
        else: f.C[0] = 0                                      # only what is ahead
        other = gaps.clone(); other[:, 11] *= 3
        u, v = f.filter(x.mT, gaps), f.filter(x.mT, other)
    assert torch.allclose(u[..., 11:], v[..., 11:], atol=1e-6)
    moved = (u-v).abs().amax((0, 1))[:11]
    # without a step size the neighbour's impulse is read as it is, and what is behind it has crossed the gap
    assert moved[10 if arch not in ('lru', 'dlr') else 9] > 1e-5

# step by step and in pieces (TRAPS 30, 32)

@pytest.mark.parametrize('arch', follows+['s4'])
@pytest.mark.parametrize('trained', (False, True), ids=('new', 'after a step'))
def test_steps_and_pieces_equal_the_whole(arch, trained):
    f, x = body(arch, True, 4), stamped(200)
    if trained:
        opt = torch.optim.Adam(f.parameters(), 1e-2)
        f(x).roll(1, 1).diff(dim=1).square().mean().backward()
        opt.step()
    f.eval()
    with torch.no_grad():
        whole, state, out = f(x), None, []
        for t in range(200):
            y, state = f.step(x[:, t], state)
            out.append(y)
        assert rel_err(torch.stack(out, 1), whole) < 1e-4
        for cuts in (32, 32, 32, 32, 72), (1, 127, 72):
            state, parts = None, []
            for part in x.split(cuts, 1):
                y, state = f.extend(part, state)
                parts.append(y)
            assert rel_err(torch.cat(parts, 1), whole) < 1e-5

@each_layer
def test_gapped_and_plain_pieces_mix(layer):
    "One kind of state: a series may go on with even steps."
    f, (x, gaps) = make(layer, True), series(60)
    gaps[:, 30:] = 1
    with torch.no_grad():
        y, state = f.extend(x[:, :30], None, gaps[:, :30])
        z, state = f.extend(x[:, 30:50], state)
        last = [f.step(x[:, 50], state)[0], f.step(x[:, 50], state, gaps[:, 50])[0]]
        whole = f(x[:, :51], gaps=gaps[:, :51])
        for o in last: assert rel_err(torch.cat([y, z, o[:, None]], 1), whole) < 1e-5

# what is hidden

@each_arch
@each_way
def test_time_is_seen_where_values_are_hidden(arch, causal):
    f, x = body(arch, causal).eval(), stamped()
    mask = torch.zeros(2, 24, dtype=torch.bool); mask[:, 10:15] = True
    other, later = x.clone(), x.clone()
    other[:, 10:15, :2] += 3
    later[:, 10:15, 2] += .5
    with torch.no_grad():
        assert torch.equal(f(other, None, mask), f(x, None, mask))
        assert rel_err(f(later, None, mask)[:, 10:15], f(x, None, mask)[:, 10:15]) > 1e-3

@pytest.mark.parametrize('arch', follows)
def test_an_unknown_time_is_the_usual_step(arch):
    f, x = body(arch).eval(), stamped()
    x[:, 5, 2] = 0
    gone = x.clone(); gone[:, 5, 2] = math.nan
    with torch.no_grad(): assert torch.equal(f(gone), f(x))

# mixed stacks, and errors

def test_a_pattern_gives_gaps_to_the_layers_that_take_them():
    f, x = create_body('s4d+transformer+s4+mega', d_in=3, d_model=16, time_channel=True), stamped()
    y = f(x)
    nn.init.zeros_(f.embed.time.weight)
    late = x.clone(); late[..., 2] += 1
    assert y.shape == (2, 24, 16) and not torch.equal(f(late), f(x))

def test_errors_name_what_is_wrong():
    x, gaps = series()
    for make_layer in layers.values():
        f = make_layer(D, causal=True)
        for call in (lambda g: f(x, gaps=g), lambda g: f.extend(x, None, g)):
            with pytest.raises(ValueError, match=r'gaps must be \(B, L\), here \(2, 24\), not \(2, 23\)'): call(gaps[:, 1:])
            with pytest.raises(TypeError, match='gaps must be a floating-point tensor, not torch.int64'): call(gaps.long())
    for o in (S4D(D), DLR(D)):
        o.mode = 'conv'
        with pytest.raises(ValueError, match="mode='conv'"): o(x, gaps=gaps)
    with pytest.raises(ValueError, match='S4 takes no gaps'): S4(D)(x, gaps=gaps)
    with pytest.raises(ValueError, match='time_channel=True needs values'): create_body('s5', vocab_size=9, time_channel=True)
    with pytest.raises(ValueError, match='d_in must be at least 2'): create_body('s5', d_in=1, time_channel=True)
