"HiPPO matrices, S4D and S4 kernels and outputs against tensors made with the public S4 code (data only; conventions as in `lrpt_nb.ssm`)."
from pathlib import Path

import pytest, torch
from safetensors.torch import load_file

from lrpt_nb.core import rel_err
from lrpt_nb.conv import long_conv
from lrpt_nb.ssm import (diag_init, diag_kernel, diag_kernel_loop, diag_kernel_vandermonde, dplr_kernel, dplr_kernel_loop,
                         hippo_legs, nplr_legs)

golden = load_file(Path(__file__).parent/'golden'/'s4_reference.safetensors')
cases = sorted({k.rsplit('.', 1)[0] for k in golden if k.startswith('s4d.') and k.endswith('.A')})
s4_cases = sorted({k.rsplit('.', 1)[0] for k in golden if k.startswith('s4.') and k.endswith('.A')})
sizes = sorted({int(k.split('.')[2][1:]) for k in golden if k.startswith('hippo.')})
lengths = (1, 7, 64, 100)

def as_complex(name): return torch.view_as_complex(golden[name].contiguous())

def read(case, names='ABC'):
    "The complex tensors `names`, then `dt, D` real, of one case."
    return *(as_complex(f'{case}.{n}') for n in names), golden[f'{case}.dt'], golden[f'{case}.D']

def test_there_is_something_to_check():
    assert len(cases) == 12, cases
    assert s4_cases == ['s4.legs.bilinear.bi', 's4.legs.bilinear.uni'] and sizes == [4, 8, 16, 64]

@pytest.mark.parametrize('N', sizes)
def test_hippo(N):
    for got, name in zip(hippo_legs(N), ('A_dense', 'B_dense')): assert rel_err(got, golden[f'hippo.legs.N{N}.{name}']) < 1e-12

@pytest.mark.parametrize('N', sizes)
def test_nplr(N):
    """Sorted by frequency. Eigenvectors have a free phase each, which sizes and `P conj(B)` do not see. The file is float32, and its `B` had the real and the
    imaginary part cut off at 2 after the phase was chosen; so the whole is turned to the file's phase and cut the same way."""
    w, P, B = nplr_legs(N)
    want_w, want_P, want_B = (as_complex(f'hippo.legs.N{N}.{n}').to(torch.complex128) for n in ('w', 'P', 'B'))
    order = want_w.imag.argsort()
    want_w, want_P, want_B = want_w[order], want_P[order], want_B[order]
    assert w.shape == (N//2,) and rel_err(w, want_w) < 1e-5 and rel_err(diag_init('legs', N//2), want_w) < 1e-5
    assert rel_err(P.abs(), want_P.abs()) < 1e-5
    B = B*want_P/P
    cut = torch.complex(B.real.clamp(-2, 2), B.imag.clamp(-2, 2))
    assert rel_err(cut, want_B) < 1e-5
    whole = (cut-B).abs() < 1e-6
    assert whole.any() and not whole.all()
    assert rel_err((want_P*B.conj())[whole], (want_P*want_B.conj())[whole]) < 1e-5

@pytest.mark.parametrize('L', lengths)
@pytest.mark.parametrize('case', cases)
def test_s4d(case, L):
    A, B, C, dt, D = read(case)
    K, u, y = (golden[f'{case}.L{L}.{n}'] for n in 'Kuy')
    disc = case.split('.')[2]
    fast = diag_kernel(A, B, C, dt, L, disc)
    assert rel_err(fast, K) < 2e-4
    wide = diag_kernel_loop(*(o.to(torch.complex128) for o in (A, B, C)), dt.double(), L, disc)
    assert rel_err(fast, wide) < 1e-4 and rel_err(wide, K) < 2e-4
    assert rel_err(diag_kernel_vandermonde(A, B, C, dt, L, disc), K) < 2e-4
    got = long_conv(u.transpose(1, 2), *fast) + D[:, None]*u.transpose(1, 2)
    assert rel_err(got.transpose(1, 2), y) < 2e-4

@pytest.mark.parametrize('L', lengths)
@pytest.mark.parametrize('case', s4_cases)
def test_s4(case, L):
    *args, D = read(case, 'APBC')
    K, u, y = (golden[f'{case}.L{L}.{n}'] for n in 'Kuy')
    assert K.dtype == torch.float64
    wide = [o.to(torch.complex128) for o in args[:-1]]+[args[-1].double()]
    assert rel_err(dplr_kernel(*args, L), K) < 2e-5
    assert rel_err(dplr_kernel(*wide, L), K) < 1e-5 and rel_err(dplr_kernel_loop(*wide, L), K) < 1e-5
    assert rel_err(dplr_kernel(*wide, L), dplr_kernel_loop(*wide, L)) < 1e-11
    got = long_conv(u.transpose(1, 2), *dplr_kernel(*args, L)) + D[:, None]*u.transpose(1, 2)
    assert rel_err(got.transpose(1, 2), y) < 2e-4
