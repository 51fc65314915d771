"TRAPS 13, 19, 20, 22, 23, 24, 31 for the attention layers by themselves, and where their weights begin."
import pickle
from functools import partial
import pytest
from toys import *
from lrpt_nb.attention import Attention, LocalAttention, attend, attend_direct, attn_inits, local_attend, positions
from lrpt_nb.core import rel_err
from lrpt_nb.objectives import real_positions

L, LENGTHS = 24, (24, 1, 2, 7, 17)
inside = [p for p in positions.names() if positions[p].where == 'attention'] + ['none']
layers = dict(full=Attention, w1=partial(LocalAttention, window=1), w4=partial(LocalAttention, window=4), w5=partial(LocalAttention, window=5),
              w12=partial(LocalAttention, window=12), w100=partial(LocalAttention, window=100))
each_layer = pytest.mark.parametrize('layer', layers.values(), ids=layers)
each_pos = pytest.mark.parametrize('pos', inside)
each_way = pytest.mark.parametrize('causal', ways.values(), ids=ways)

class Stack(torch.nn.Module):
    "Four residual layers."
    def __init__(self, layer, pos, causal, depth=4):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(layer(16, causal=causal, n_heads=2, pos=pos) for _ in range(depth))
    def forward(self, x, lengths=None):
        for o in self.layers: x = x + o(x, lengths)
        return x

def rows(length=L, n=len(LENGTHS)):
    torch.manual_seed(1)
    return torch.randn(n, length, 16)

@each_layer
@each_pos
@each_way
@pytest.mark.parametrize('junk', (0., 1e3))
def test_a_padded_row_equals_the_row_alone(layer, pos, causal, junk):
    f, lengths = Stack(layer, pos, causal), torch.tensor(LENGTHS)
    x = rows()
    x = torch.where(real_positions(x, lengths)[..., None], x, junk)
    with torch.no_grad():
        out = f(x, lengths)
        assert torch.isfinite(out).all()                      # windows that hold only padding too
        for i, n in enumerate(LENGTHS): assert rel_err(out[i, :n], f(x[i:i+1, :n])[0]) < 1e-5

@each_layer
@each_pos
@each_way
def test_padding_has_no_gradient_whatever_memory_held(layer, pos, causal):
    f, lengths, x = Stack(layer, pos, causal), torch.tensor(LENGTHS), rows().requires_grad_()
    real = real_positions(x, lengths)
    torch.use_deterministic_algorithms(True)                  # fills what `empty` returns with NaN
    try: f(x, lengths)[real].square().sum().backward()
    finally: torch.use_deterministic_algorithms(False)
    assert x.grad[~real].abs().max() == 0 and torch.isfinite(x.grad).all()
    assert x.grad[real].abs().amax(-1).min() > 0
    assert all(torch.isfinite(p.grad).all() and p.grad.abs().sum() > 0 for p in f.parameters())

@each_layer
@each_pos
def test_causal_layers_do_not_see_the_future(layer, pos):
    x = rows(100, 2)
    late = x.clone(); late[:, 41:] += 100
    for causal in (False, True):
        f = Stack(layer, pos, causal)
        with torch.no_grad(): assert (rel_err(f(late)[:, :41], f(x)[:, :41]) < 1e-6) == causal

@each_layer
@each_pos
@each_way
@pytest.mark.parametrize('length', (1, 2, 3, 7, 31, 33, 63, 65, 100, 1000))
def test_any_length_with_gradients(layer, pos, causal, length):
    f, x = Stack(layer, pos, causal, depth=1), rows(length, 2).requires_grad_()
    out = f(x)
    out.square().sum().backward()
    # position by position: what this query may see, and nothing else
    own = getattr(f.layers[0], 'window', length)
    q, k, v = f.layers[0].qkv(x.detach()).view(2, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
    if f.layers[0].pos is not None: q, k = f.layers[0].pos(q), f.layers[0].pos(k)
    for t in {0, length//3, length//2, length-1}:
        lo = max(0, (t//own-1)*own)
        hi = t+1 if causal else min(length, (t//own+2)*own)
        bias = None if pos != 'alibi' else f.layers[0].pos.bias(torch.tensor([t]), torch.arange(lo, hi))
        o = attend_direct(q[:, :, t:t+1], k[:, :, lo:hi], v[:, :, lo:hi], bias=bias)
        want = x[:, t] + f.layers[0].out(o.transpose(1, 2).reshape(2, 16))
        assert rel_err(out[:, t], want) < 1e-5
    assert torch.isfinite(x.grad).all() and x.grad.abs().amax(-1).min() > 0

@each_layer
@each_pos
def test_weights_serve_other_lengths(layer, pos):
    "A layer that saw 64 positions, then 48, then 256: the first ones of a causal layer are the same each time."
    f, x = Stack(layer, pos, causal=True), rows(256, 2)
    with torch.no_grad():
        at64, at48, at256 = f(x[:, :64]), f(x[:, :48]), f(x)
    assert rel_err(at64[:, :48], at48) < 1e-5 and rel_err(at256[:, :64], at64) < 1e-5
    assert not f.state_dict().keys() - Stack(layer, 'none', True).state_dict().keys() # no table of a length

@each_pos
def test_only_differences_of_positions_count(pos):
    "Two-way attention over a sequence with the same content shifted by whole windows."
    f, x = Stack(layers['w4'], pos, causal=False, depth=1), rows(16, 2)
    with torch.no_grad(): assert rel_err(f(torch.cat([x]*3, 1))[:, 20:28], f(torch.cat([x]*4, 1))[:, 36:44]) < 1e-5

def kept_bytes(f):
    "Bytes of all storages that autograd holds on to after `f()`."
    kept = {}
    def pack(t):
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes(), t
        return t
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t): f()
    return sum(n for n, _ in kept.values())

@each_pos
@each_way
@pytest.mark.parametrize('padded', (False, True), ids=('whole', 'padded'))
def test_memory_of_local_attention_is_linear(pos, causal, padded):
    f = Stack(partial(LocalAttention, window=32), pos, causal, depth=1)
    sizes = [kept_bytes(lambda: f(rows(n, 1), torch.tensor([n-9]) if padded else None))/n for n in (512, 2048, 16384)]
    assert sizes[2] < 1.2*sizes[1] < 1.5*sizes[0]

@each_layer
@each_pos
@each_way
@pytest.mark.parametrize('length', (24, 700))                 # written out and fused
def test_autocast_stays_close(layer, pos, causal, length):
    f, x, lengths = Stack(layer, pos, causal, depth=1), rows(length, 2), torch.tensor([length, length//2])
    grads = []
    for half in (False, True):
        f.zero_grad()
        with torch.autocast('cpu', torch.bfloat16, enabled=half): out = f(x, lengths)
        out.float()[real_positions(x, lengths)].square().sum().backward()
        grads.append([p.grad.clone() for p in f.parameters()])
    for got, want in zip(*grads): assert (got-want).norm() < .05*max(want.norm(), grads[0][0].norm()*.1)

def test_masks_in_every_precision():
    "Padding that goes in by a channel instead of the mask leaves no trace, in half precision neither."
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 20, 8)
    keep = torch.arange(20) < torch.tensor([20, 6])[:, None]
    bias = positions['alibi'](8, 2).bias(torch.arange(20), torch.arange(20))
    for dtype, tol in ((torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)):
        for causal, b in ((True, None), (False, bias), (True, bias)):
            a = [o.to(dtype) for o in (q, k, v)]
            out = attend(*a, keep, causal, b)
            assert rel_err(out.double(), attend_direct(q.double(), k.double(), v.double(), keep, causal, b)) < tol
            for fill in (1e3, float('inf'), float('nan')):
                wild = [torch.where(keep[:, None, :, None], o, fill) for o in a[1:]]
                assert torch.equal(attend(a[0], *wild, keep, causal, b), out)

@pytest.mark.parametrize('init', attn_inits.names())
@pytest.mark.parametrize('layer', (Attention, LocalAttention))
def test_beginnings(layer, init):
    "Named in a body's config, different from each other, repeatable, and able to learn."
    def make(name):
        torch.manual_seed(3)
        return layer(32, n_heads=2, init=name)
    a, b = make(init), make(init)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters()))
    for other in attn_inits:
        if other != init: assert not torch.equal(a.qkv.weight, make(other).qkv.weight)
    a(torch.randn(2, 9, 32)).square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in a.parameters())
    assert create_body('transformer', d_in=1, d_model=32, init=init).config['init'] == init

def test_mimetic_attention_looks_at_itself():
    "What the initialisation is for: each position attends most to positions like itself, and its value comes back negated."
    torch.manual_seed(0)
    layer = Attention(64, n_heads=1, init='mimetic')
    x = torch.randn(1, 30, 64)
    out = layer(x*4)                                          # sharp attention: everyone to itself
    assert torch.nn.functional.cosine_similarity(out, x, -1).max() < -.3
    assert torch.nn.functional.cosine_similarity(Attention(64, n_heads=1)(x*4), x, -1).abs().mean() < .3

@each_layer
@each_pos
def test_layers_can_be_pickled(layer, pos):
    f, x = Stack(layer, pos, causal=False), rows()
    with torch.no_grad():
        want = f(x)
        assert torch.equal(pickle.loads(pickle.dumps(f))(x), want)
