"Own data through the front door: what training chose is what new rows are read by."
import numpy as np
import pandas as pd
import pytest

from lrpt_nb.data import seq_dls

rng = np.random.default_rng(0)
wide = pd.DataFrame(rng.normal(size=(60, 12)), columns=[f's{i}' for i in range(12)]).assign(site=np.arange(60)//3, label=['u', 'v']*30)
long = pd.DataFrame([dict(rec=i, t=j, a=rng.normal(), b=50+rng.normal(), patient=i//2, label='xy'[i//2 % 2]) for i in range(40) for j in range(12)])

@pytest.mark.parametrize('change', [lambda t: t, lambda t: t[t.columns[::-1]], lambda t: t.assign(more=7.), lambda t: t.drop(columns=['label']), lambda t: t.drop(columns=t.columns[t.columns.isin(['site', 'patient'])])])
@pytest.mark.parametrize('kind', ['wide', 'long'])
def test_new_rows_are_read_by_the_columns_of_training(kind, change):
    "Another order, columns more, no label, no group: the same inputs."
    t, kw = dict(wide=(wide, dict(y='label', groups='site')), long=(long, dict(y='label', row='rec', times='t', groups='patient')))[kind]
    dls = seq_dls(t, valid=.3, seed=0, **kw)
    want = dls.test_dl(t[[o for o in t if o not in ('site', 'patient', 'label')]]).dataset.x
    got = dls.test_dl(change(t)).dataset.x
    assert got.shape == want.shape == (len(want), 12, want.shape[2]) and dls.prep.d_in == want.shape[2]
    np.testing.assert_array_equal(got.numpy(), want.numpy())

def test_a_missing_column_is_named():
    dls = seq_dls(wide, 'label', groups='site')
    with pytest.raises(ValueError, match="'s3'"): dls.test_dl(wide.drop(columns='s3'))

def test_validation_tables_are_read_by_name():
    t = long.drop(columns='patient')
    dls = seq_dls(t[t.rec < 30], 'label', row='rec', times='t', valid=t[t.rec >= 30][['b', 'rec', 't', 'a', 'label']])
    assert np.abs(dls.valid.dataset.x.numpy().mean((0, 1))[:2]).max() < 1

@pytest.mark.parametrize('columns', [wide.columns[:12], list(wide.columns[:12]), tuple(wide.columns[:12])])
def test_settings_of_a_table_are_plain(columns):
    import json
    json.dumps(seq_dls(wide, 'label', columns=columns).info())

def test_a_shorter_sequence_of_a_pair_is_padded():
    "The answer to a short one is not the answer to the same row filled up."
    a = rng.normal(size=(40, 20)) + 7
    dls = seq_dls(a, ['a', 'b']*20, pair=a[::-1].copy())
    for x, pair, want in (([a[0]], [a[1][:8]], [20, 8]), ([a[0][:8]], [a[1]], [8, 20])):
        assert dls.test_dl(x, pair=pair).dataset.lengths.tolist() == want
