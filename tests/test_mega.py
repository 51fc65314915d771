"TRAPS 1, 2, 3, 10, 13, 20, 22, 23, 24, 31 for MEGA, its published sizes, and its oracle."
from functools import partial
import pytest
from toys import *
from lrpt_nb.core import rel_err
from lrpt_nb.mega import EMA, Mega, mega_attns, mega_direct
from lrpt_nb.objectives import real_positions

L, LENGTHS = 24, (24, 1, 2, 7, 17)
chunks = pytest.mark.parametrize('chunk', (None, 5, 8, 64))
each_attn = pytest.mark.parametrize('attn', mega_attns.names())
each_way = pytest.mark.parametrize('causal', ways.values(), ids=ways)

class Stack(torch.nn.Module):
    "Four blocks; weights large enough for attention and gates to show."
    def __init__(self, causal, chunk, attn, depth=4, **settings):
        super().__init__()
        torch.manual_seed(0)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(16) for _ in range(depth))
        self.layers = torch.nn.ModuleList(Mega(16, causal, z_dim=8, n_modes=4, chunk=chunk, attn=attn, **settings) for _ in range(depth))
        for p in self.layers.parameters(): torch.nn.init.normal_(p, std=.3)
    def forward(self, x, lengths=None):
        for norm, o in zip(self.norms, self.layers): x = x + o(norm(x), lengths, stream=x)
        return x

def rows(length=L, n=len(LENGTHS)):
    torch.manual_seed(1)
    return torch.randn(n, length, 16)

@chunks
@each_attn
@each_way
@pytest.mark.parametrize('junk', (0., 1e3))
def test_a_padded_row_equals_the_row_alone(chunk, attn, causal, junk):
    f, lengths = Stack(causal, chunk, attn), torch.tensor(LENGTHS)
    x = torch.where(real_positions(rows(), lengths)[..., None], rows(), junk)
    with torch.no_grad():
        out = f(x, lengths)
        assert torch.isfinite(out).all()
        for i, n in enumerate(LENGTHS): assert rel_err(out[i, :n], f(x[i:i+1, :n])[0]) < 1e-5

@chunks
@each_attn
@each_way
def test_padding_has_no_gradient_whatever_memory_held(chunk, attn, causal):
    f, lengths, x = Stack(causal, chunk, attn), torch.tensor(LENGTHS), rows().requires_grad_()
    real = real_positions(x, lengths)
    torch.use_deterministic_algorithms(True)                  # fills what `empty` returns with NaN
    try: f(x, lengths)[real].square().sum().backward()
    finally: torch.use_deterministic_algorithms(False)
    assert x.grad[~real].abs().max() == 0 and torch.isfinite(x.grad).all()
    assert x.grad[real].abs().amax(-1).min() > 0
    assert all(torch.isfinite(p.grad).all() and p.grad.abs().sum() > 0 for p in f.parameters())

@chunks
@each_attn
def test_causal_layers_do_not_see_the_future(chunk, attn):
    x = rows(100, 2)
    late = x.clone(); late[:, 41:] += 100
    for causal in (False, True):
        f = Stack(causal, chunk, attn)
        with torch.no_grad(): assert (rel_err(f(late)[:, :41], f(x)[:, :41]) < 1e-5) == causal

@chunks
@each_attn
@each_way
@pytest.mark.parametrize('length', (1, 2, 3, 7, 31, 33, 63, 65, 100))
def test_any_length_equals_the_oracle_with_all_gradients(chunk, attn, causal, length):
    layer, x = Stack(causal, chunk, attn, depth=1, max_dist=6).layers[0].double(), rows(length, 1).double().requires_grad_()
    to, inputs = torch.randn(length, 16, dtype=torch.float64), [x, *layer.parameters()]
    got, want = layer(x)[0], mega_direct(layer, x[0])
    assert rel_err(got, want) < 1e-9
    # a row of one position has neither a decay nor a distance
    got, want = (torch.autograd.grad((o*to).sum(), inputs, allow_unused=True, materialize_grads=True) for o in (got, want))
    for g, w in zip(got, want): assert (g-w).norm() < 1e-8*(1+w.norm())

@chunks
@each_way
def test_weights_serve_other_lengths(chunk, causal):
    "Built for 10 distances, run at 48, 64 and 256: what is further than that has the outermost bias."
    layer = Stack(causal, chunk, 'softmax', depth=1, max_dist=10).layers[0].double()
    for length in (48, 256):
        x = rows(length, 1).double()
        with torch.no_grad(): assert rel_err(layer(x)[0], mega_direct(layer, x[0])) < 1e-9
    if causal:
        x = rows(256, 2)
        f = Stack(True, chunk, 'softmax')
        with torch.no_grad(): assert rel_err(f(x)[:, :64], f(x[:, :64])) < 1e-5

def kept_bytes(f):
    "Bytes of all storages that autograd holds on to after `f()`."
    kept = {}
    def pack(t):
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes(), t
        return t
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t): f()
    return sum(n for n, _ in kept.values())

@each_attn
@each_way
def test_memory_in_chunks_is_linear(attn, causal):
    f = Stack(causal, 32, attn, depth=1)
    sizes = [kept_bytes(lambda: f(rows(n, 1)))/n for n in (512, 2048, 16384)]
    assert sizes[2] < 1.2*sizes[1] < 1.5*sizes[0]

@each_attn
@each_way
def test_training_at_a_rough_rate_stays_finite(attn, causal):
    "TRAP 1, and 3: under autocast too."
    for half in (False, True):
        torch.manual_seed(0)
        f, x = torch.nn.Sequential(Mega(16, causal, z_dim=8, chunk=10, attn=attn), torch.nn.Linear(16, 16)), rows()
        opt = torch.optim.Adam(f.parameters(), 1e-2)
        first = None
        for _ in range(100):
            with torch.autocast('cpu', torch.bfloat16, enabled=half): loss = (f(x)-x.roll(1, 1)).square().mean()
            first = first or loss.item()
            opt.zero_grad(); loss.backward(); opt.step()
        assert torch.isfinite(loss) and loss.item() < .8*first
        assert all(torch.isfinite(p).all() for p in f.parameters())

@pytest.mark.parametrize('names', (['delta'], ['alpha'], ['delta', 'alpha']), ids='+'.join)
@pytest.mark.parametrize('value', (-20., 10., 30., 1e4))
def test_absurd_time_scales_stay_finite(names, value):
    layer = Mega(16, z_dim=8)
    for name in names: torch.nn.init.constant_(getattr(layer.ema, name), value)
    out = layer(rows(300, 2))
    out.square().sum().backward()
    assert torch.isfinite(out).all() and all(torch.isfinite(p.grad).all() for p in layer.parameters())

def test_parameters():
    "TRAPS 2 and 10: nothing complex; what is not to be decayed is there under its name."
    layer = Mega(16)
    assert not any(p.is_complex() for p in layer.parameters())
    spared = [p for m in layer.modules() for n in getattr(m, 'no_decay', ()) for p in [getattr(m, n)]]
    assert len(spared) == 2 and all(any(p is o for o in layer.parameters()) for p in spared)

def test_both_directions_count_the_present():
    "As in the paper's code: a kernel and its mirror image, each from lag 0 on."
    torch.manual_seed(0)
    ema, u = EMA(3, n_modes=2), torch.zeros(1, 9, 3)
    u[:, 4] = 1
    w, log_q = ema.modes()
    with torch.no_grad(): ema.omega.zero_()
    back, fore = ((w[i, :, None]*torch.exp(log_q[i, :, None]*torch.arange(5)[:, None])).sum(-1).T for i in (1, 0))
    want = torch.zeros(9, 3)
    want[4:] += fore; want[:5] += back.flip(0)
    assert rel_err(ema(u)[0], torch.nn.functional.silu(want)) < 1e-5

def count(m): return sum(p.numel() for p in m.parameters())

@pytest.mark.parametrize('d,depth,settings,published', [
    (160, 8, dict(v_dim=320, chunk=128, attn='laplace'), 2_727_160),        # Image, BatchNorm
    (80, 6, dict(v_dim=160, max_dist=4000), 610_074)])                      # ListOps, LayerNorm; a table for 4000 positions
def test_published_sizes(d, depth, settings, published):
    "A block is a norm, the layer, and a feed-forward of width 2d with a norm of its own; no norm at the end."
    layer, N, z, v = Mega(d, **settings), 16, 64, 2*d
    M = settings.get('max_dist') or settings['chunk']
    average = 2*4*d*N + d                                     # delta, alpha, beta, gamma in two directions; the skip
    projections = (d+1)*(d+z+v+d) + (d+1)*v + (v+1)*d         # gates, z and candidate; values; back
    assert count(layer.ema) == average
    assert count(layer) == average + projections + 4*z + 2*M-1
    norm = torch.nn.BatchNorm1d(d)
    ff = torch.nn.Sequential(torch.nn.LayerNorm(d), torch.nn.Linear(d, 2*d), torch.nn.GELU(), torch.nn.Linear(2*d, d))
    assert depth*(count(norm) + count(layer) + count(ff)) == published
