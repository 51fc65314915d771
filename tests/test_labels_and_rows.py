"Labels and rows as people hold them: conventions of other libraries, containers of other libraries, and errors that name what is wrong."
import numpy as np
import pytest

from lrpt_nb.data import seq_dls
from lrpt_nb.storage import Ragged
from lrpt_nb.targets import TargetPrep

r = np.random.RandomState(0)
x = r.randn(40, 12, 2).astype('f4')
y = ['a', 'b']*20

@pytest.mark.parametrize('mark', (-100, None, np.nan))
def test_a_step_marked_as_not_counting_is_no_class(mark):
    "-100 is torch's and transformers' mark, and what `encode` itself writes."
    steps = [[0, 1, 2]*4 for _ in range(40)]
    steps[0] = [mark]*6+[1]*6
    dls = seq_dls(x, steps if mark is None else np.array(steps), kind='dense', valid=[1, 2])
    assert list(dls.vocab) == [0, 1, 2] and dls.train_ds.y[0, :7].tolist() == [-100]*6+[1]
    assert dls.target.decode(dls.train_ds.y[0])[5:7] == [None, 1]
    again = TargetPrep(steps, 'dense', [12]*40)
    np.testing.assert_array_equal(again.encode(dls.train_ds.y[:1].numpy(), [12]), dls.train_ds.y[:1])

def test_only_marks_is_no_label():
    with pytest.raises(ValueError, match='every step is unlabelled'): seq_dls(x, np.full((40, 12), -100), kind='dense')

# 42: the layout of rows on disk

def on_disk(tmp_path, x):
    np.save(tmp_path/'m.npy', x)
    return np.load(tmp_path/'m.npy', mmap_mode='r')

def test_channels_first_on_disk_is_named(tmp_path):
    m = on_disk(tmp_path, r.randn(40, 3, 50))
    with pytest.raises(ValueError, match=r'(?s)\(.*C, L\).*NCL'): seq_dls(m, y)
    with pytest.raises(ValueError, match="(?s)layout='NCL'.*disk.*transpose"): seq_dls(m, y, layout='NCL')
    with pytest.raises(ValueError, match="layout='x' is not known; accepted: 'auto'"): seq_dls(m, y, layout='x')
    assert seq_dls(m, y, layout='NLC').prep.d_in == 50
    learn = seq_dls(r.randn(40, 3, 50), y, layout='NCL')
    with pytest.raises(ValueError, match="layout='NCL'"): learn.test_dl(m)

@pytest.mark.parametrize('shape', ((40, 1, 12), (40, 5, 1), (40, 12)))
def test_layouts_that_are_the_same_in_memory_order_are_read_on_disk(tmp_path, shape):
    x = r.randn(*shape).astype('f4')
    a, b = seq_dls(x, y, layout='NCL'), seq_dls(on_disk(tmp_path, x), y, layout='NCL')
    assert a.prep.d_in == b.prep.d_in
    np.testing.assert_array_equal(a.train_ds.x, b.train_ds.batch(np.arange(32))[0])

def test_rows_of_unequal_length_on_disk_have_steps_first(tmp_path):
    ragged = Ragged(r.randn(400, 3), np.arange(0, 401, 10))
    assert seq_dls(ragged, y).prep.d_in == 3
    with pytest.raises(ValueError, match="layout='NCL'"): seq_dls(ragged, y, layout='NCL')
    with pytest.raises(ValueError, match='NCL'): seq_dls(Ragged(r.randn(400, 30), np.arange(0, 401, 10)), y)
    with pytest.raises(ValueError, match='row 2 of x is empty'): seq_dls(Ragged(r.randn(3), [0, 1, 2, 2, 3]), list('abab'))
