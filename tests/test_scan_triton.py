"The Triton scan: its kernels in the interpreter (`triton_cases.py`, a process of its own), compiled ahead of time, and the ways out when they cannot run."
import os, re, subprocess, sys, warnings
import pytest
import torch
from conftest import ROOT
from lrpt_nb.core import rel_err
from lrpt_nb.scan import linear_scan, scan_loop

triton = pytest.importorskip('triton')
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
import lrpt_nb.scan, lrpt_nb.scan_triton as st

def python(*args, **env):
    "Run Python with `args`; `TRITON_INTERPRET` only if given."
    env = {k: v for k, v in os.environ.items() if k != 'TRITON_INTERPRET'} | env
    return subprocess.run([sys.executable, *args], cwd=ROOT, env=env, capture_output=True, text=True, errors='replace')

def test_kernels_in_the_interpreter():
    "TRAPS 4, 20, 22, 25, 26, 60: Triton reads the variable when it is imported, so the cases have their own process."
    p = python('-m', 'pytest', '-q', '-x', '-p', 'no:cacheprovider', 'tests/triton_cases.py', TRITON_INTERPRET='1')
    assert p.returncode == 0, p.stdout[-8000:] + p.stderr[-2000:]
    assert re.search(r'\d+ passed', p.stdout) and 'skipped' not in p.stdout, p.stdout[-2000:]

# ahead of time: no GPU needed

targets = dict(sm80=GPUTarget('cuda', 80, 32), sm90=GPUTarget('cuda', 90, 32), sm100=GPUTarget('cuda', 100, 32), gfx942=GPUTarget('hip', 'gfx942', 64))
# COMPLEX, ACC, type of the data, type of carries and start
kinds = dict(fp32=(0, tl.float32, 'fp32', 'fp32'), bf16=(0, tl.float32, 'bf16', 'fp32'), complex64=(1, tl.float32, 'i64', 'i64'),
             fp64=(0, tl.float64, 'fp64', 'fp64'), complex128=(2, tl.float64, 'fp64', 'fp64'))
kernels = dict(scan=st._scan_kernel, adjoint=st._adjoint_kernel, segment=st._segment_kernel)
data, states = {'a', 'b', 'h', 'g', 'da', 'db'}, {'h0', 'hT', 'c', 'gT', 'dh0', 'A', 'B'}
aligned = {'L', 'span', 's0', 's1', 's2'}

def build(name, target, kind, flip, a_step, rows=4096, L=65536, ones=()):
    "Compile one kernel as a launch on `rows` by `L` would."
    kernel, (cplx, acc, num, state) = kernels[name], kinds[kind]
    n, block, warps, stages, *_ = st.launch_config(rows, L, st._width(dict(COMPLEX=cplx, ACC=acc)))
    known = dict(FLIP=flip, A_STEP=a_step, COMPLEX=cplx, ACC=acc, ROWS=n, BLOCK=block, STAGES=stages, HAS_H0=1, HAS_GT=1, DA=2 if a_step else 1, DB=1, DH0=1, ADJ=1, MAPS=0)
    names = kernel.arg_names
    # a launch compiles integers that are 1 into the kernel
    consts = {o: known[o] for o in names if o in known} | {o: 1 for o in ones if o in names}
    signature = {o: 'constexpr' if o in consts else '*'+num if o in data else '*'+state if o in states else 'i32' for o in names}
    attrs = {(i,): [['tt.divisibility', 16]] for i, o in enumerate(names) if o in (data | states | aligned) - set(consts)}
    return triton.compile(ASTSource(fn=kernel, signature=signature, constexprs=consts, attrs=attrs), target=target, options=dict(num_warps=warps, **st.registers(target.backend == 'hip')))

def local_memory(out, log):
    "What the compilers report about spills and stacks: (numbers that must be zero, registers)."
    if 'cubin' in out.asm:
        zeros = [int(o) for o in re.findall(r'(\d+) bytes (?:stack frame|spill stores|spill loads|cumulative stack size)', log)]
        return zeros, int(re.search(r'Used (\d+) registers', log)[1])
    text = out.asm['amdgcn']
    # scalar registers spill into lanes of vector registers, not into memory
    zeros = [int(o) for o in re.findall(r'\.(?:private_segment_fixed_size|vgpr_spill_count):\s*(\d+)', text)]
    return zeros, int(re.search(r'\.vgpr_count:\s*(\d+)', text)[1])

@pytest.fixture
def fresh_cache(tmp_path):
    "Compile anew, and have ptxas tell what it did."
    with triton.knobs.cache.scope(), triton.knobs.nvidia.scope():
        triton.knobs.cache.dir, triton.knobs.nvidia.dump_ptxas_log = str(tmp_path), True
        yield

layouts = [(kind, *o) for kind in ('fp32', 'bf16', 'complex64') for o in ((0, 1), (1, 1), (1, 0))] + [('fp64', 1, 1), ('complex128', 1, 1)]

@pytest.mark.parametrize('target', targets)
@pytest.mark.parametrize('name', kernels)
def test_compiles_without_a_gpu_and_does_not_spill(name, target, fresh_cache, capsys):
    for kind, flip, a_step in layouts:
        for rows, L in ((4096, 65536), (100_000, 100)):
            if L == 100 and kind != 'complex64': continue
            out = build(name, targets[target], kind, flip, a_step, rows, L)
            zeros, registers = local_memory(out, capsys.readouterr().out)
            assert len(zeros) >= 2 and not any(zeros), (kind, flip, a_step, zeros)
            assert registers <= 255

@pytest.mark.parametrize('name', kernels)
def test_sizes_of_one_compile(name, fresh_cache):
    "One row, one step, one segment, one stride: each is compiled into the kernel of such a launch."
    for flip, a_step in ((0, 1), (1, 0)):
        for L, ones in ((65536, ('S', 'n1', 'n2')), (65536, ('R', 'S', 'n1', 's2')), (1, ('R', 'L', 'S', 'n1', 'n2', 's0', 's1', 's2')), (1, ('L', 'S'))):
            assert build(name, targets['sm90'], 'complex64', flip, a_step, 4096 if 'R' not in ones else 1, L, ones).asm['cubin']

@pytest.mark.parametrize('kind', ('fp32', 'complex64'))
def test_reversed_kernels_read_as_wide_as_forward_ones(kind, fresh_cache):
    "Falling addresses would be read one number at a time, and the scan would need four times the exchanges."
    def ops(flip):
        ptx = build('scan', targets['sm90'], kind, flip, 1).asm['ptx']
        return [len(re.findall(o, ptx)) for o in (r'cp\.async\.cg', r'st\.global\.v\d', r'shfl\.sync', r'bar\.sync')]
    assert ops(0) == ops(1) and all(ops(0))

# 28: no GPU, no interpreter; no Triton at all

def problem(L=20):
    gen = torch.Generator().manual_seed(0)
    return torch.rand(3, L, generator=gen), torch.randn(2, 3, L, generator=gen)

def test_automatic_choice_leaves_triton_alone_on_a_cpu():
    code = '''import sys, warnings
import torch, lrpt_nb.learner
from lrpt_nb.scan import linear_scan
warnings.simplefilter('error')
a, b = torch.rand(3, 20), torch.randn(3, 20, requires_grad=True)
linear_scan(a, b).sum().backward()
assert b.grad.isfinite().all()
print('triton' in sys.modules)'''
    p = python('-c', code)
    assert p.stdout.strip() == 'False', p.stdout + p.stderr

@pytest.mark.skipif(st.INTERPRETED, reason='the interpreter takes CPU tensors')
def test_asked_for_by_name_on_a_cpu(monkeypatch):
    monkeypatch.setattr(lrpt_nb.scan, '_warned', set())
    assert 'cpu' in st.triton_usable(torch.ones(1))
    a, b = problem()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        for reverse in (False, True, False):
            xs = [o.clone().requires_grad_() for o in (a, b)]
            h, hT = linear_scan(*xs, reverse=reverse, backend='triton', return_state=True)
            ys = [o.double().requires_grad_() for o in (a, b)]
            want = scan_loop(ys[0].expand_as(b), ys[1], None, reverse)
            (h.square().sum() + hT.sum()).backward()
            (want.square().sum() + want[..., 0 if reverse else -1].sum()).backward()
            assert rel_err(h, want) < 1e-6
            for x, y in zip(xs, ys): assert rel_err(x.grad, y.grad) < 1e-5
    assert len(seen) == 1 and 'CUDA or ROCm' in str(seen[0].message)

def test_without_the_package():
    code = '''import sys, warnings
sys.modules['triton'] = None            # what a machine without the package answers
import torch
from lrpt_nb.scan import linear_scan
try: import lrpt_nb.scan_triton
except ImportError as e: assert 'needs the package triton' in str(e), e
else: raise SystemExit('imported')
a, b = torch.rand(3, 20), torch.randn(3, 20)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter('always')
    for _ in range(2): assert torch.equal(linear_scan(a, b, backend='triton'), linear_scan(a, b, backend='tree'))
assert len(seen) == 1 and 'needs the package triton' in str(seen[0].message), seen
print('fine')'''
    p = python('-c', code)
    assert p.stdout.strip() == 'fine', p.stdout + p.stderr
