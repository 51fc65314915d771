"TRAPS 12, 35, 36, 38, 39: from pretraining to fine-tuning, for every registered architecture."
import json
import pytest
from toys import *
from fastai.callback.core import CancelFitException
from lrpt_nb.learner import denoise_learner, load_learner
from lrpt_nb.models import n_params
from lrpt_nb.objectives import Masked
from safetensors import safe_open
from safetensors.torch import load_file, save_file

each_arch = pytest.mark.parametrize('arch', archs)
each_input = pytest.mark.parametrize('x', few_inputs)
each_way = pytest.mark.parametrize('causal', ways.values(), ids=ways)

def card_of(path): return json.loads(Path(path).with_suffix('.json').read_text())

# 12: freezing

@each_arch
@each_input
@pytest.mark.parametrize('before', ('nothing', 'fit', 'self_pretrain', 'unfreeze', 'reset_opt'))
def test_frozen_bodies_do_not_move(arch, x, before):
    learn = tiny(toy_dls(x), arch, dropout=0.1)
    with learn.no_bar():
        if before == 'self_pretrain': learn.self_pretrain(1)
        if before in ('fit', 'reset_opt'): learn.fit(1)       # momentum and second moments are there to move things
        if before == 'unfreeze': learn.freeze(); learn.unfreeze(); learn.fit(1)
        learn.freeze()
        body, head = weights(learn.model.body), weights(learn.model.head)
        assert sum(p.numel() for p in learn.model.parameters() if p.requires_grad) == n_params(learn.model.head)
        learn.fit_one_cycle(1, 1e-2, wd=0.1)
        if before == 'reset_opt': learn.fit(1, 1e-2, wd=0.1, reset_opt=True)
        assert same(body, weights(learn.model.body)), 'a frozen body moved'
        assert not torch.equal(head['out.weight'], learn.model.head.out.weight)
        learn.unfreeze()
        learn.fit(1, 1e-2)
        assert not same(body, weights(learn.model.body))

@each_arch
def test_fine_tune_starts_with_the_head_alone(arch):
    learn, seen = tiny(toy_dls(), arch), []
    body = weights(learn.model.body)
    with learn.no_bar(): learn.fine_tune(1, freeze_epochs=2, cbs=OnEvent(after_epoch=lambda cb: seen.append(same(body, weights(cb.model.body)))))
    assert seen == [True, True, False]

@each_arch
@each_way
def test_every_parameter_is_in_one_group(arch, causal):
    learn = tiny(toy_dls(), arch, causal=causal)
    learn.create_opt()
    ids = [id(p) for g in learn.opt.param_lists for p in g]
    assert len(learn.opt.param_lists) == 2 and len(ids) == len(set(ids)) and set(ids) == {id(p) for p in learn.model.parameters()}

# 35: what is handed over

@each_arch
@each_input
@each_way
def test_self_pretraining_hands_the_body_over(arch, x, causal):
    learn, left = tiny(toy_dls(x), arch, causal=causal), {}
    body, head = learn.model.body, learn.model.head
    with learn.no_bar():
        learn.fit(1)                                          # an optimiser over the first head is there already
        trained = weights(learn.model.body)
        learn.self_pretrain(2, lr=1e-2, cbs=OnEvent(before_fit=lambda cb: left.setdefault('start', weights(cb.model.body))))
        assert same(left['start'], trained)                   # it began where the body was
        assert learn.model.body is body and not same(trained, weights(body)), 'something else was trained'
        assert learn.model.head is not head and not torch.equal(learn.model.head.out.weight, head.out.weight)
        n = len(body.state_dict())
        assert sorted(learn.transfer.loaded) == sorted(f'body.{k}' for k in body.state_dict()) and f'{n} of {n}' in str(learn.transfer)
        assert {o.removeprefix('head.') for o in learn.transfer.new} >= {k for k, _ in learn.model.head.named_parameters()}
        handed, fresh = weights(body), weights(learn.model.head)
        learn.fit(1, 1e-2)
        assert not same(handed, weights(body)) and not same(fresh, weights(learn.model.head)), 'what was handed over does not train'

@each_arch
@each_input
def test_the_best_epoch_is_handed_over(arch, x):
    learn, kept = tiny(toy_dls(x), arch), []
    with learn.no_bar(): learn.self_pretrain(4, lr=3e-2, cbs=OnEvent(after_validate=lambda cb: kept.append(weights(cb.model.body))))
    losses = [row[1] for row in learn.pretrain_recorder.values]
    best = int(np.argmin(losses))
    assert same(kept[best], weights(learn.model.body)) and learn.pretrain_history[-1]['valid_loss'] == losses[best]

@each_arch
@each_input
@each_way
def test_a_saved_body_arrives_bit_for_bit(arch, x, causal, tmp_path):
    dls = toy_dls(x)
    learn = tiny(dls, arch, causal=causal)
    with learn.no_bar(): learn.self_pretrain(1, save_to=tmp_path/'a')
    learn.save_body(tmp_path/'deep'/'er'/'b')
    assert same(load_file(tmp_path/'a.safetensors'), load_file(tmp_path/'deep'/'er'/'b.safetensors'))
    for y in targets:                                         # whatever the labels are
        other = sp_learner(toy_dls(x, y), arch, causal=causal, pretrained=tmp_path/'a', seed=7)
        assert same(weights(learn.model.body), weights(other.model.body))
        n = len(learn.model.body.state_dict())
        assert len(other.transfer.loaded) == n and f'{n} of {n}' in str(other.transfer)
    again = sp_learner(dls, arch, causal=causal, pretrained=tmp_path/'a', seed=8)
    assert not torch.equal(again.model.head.out.weight, sp_learner(dls, arch, causal=causal, pretrained=tmp_path/'a', seed=9).model.head.out.weight)
    assert torch.equal(learn.embed(), again.embed())

def _broken(tensors, how):
    first = next(k for k, v in tensors.items() if v.dim() == 2)
    if how == 'prefix': return {k.replace('body.', 'module.body.'): v for k, v in tensors.items()}
    if how == 'other prefix': return {k.replace('body.', 'encoder.'): v for k, v in tensors.items()}
    if how == 'no prefix': return {k.replace('body.', ''): v for k, v in tensors.items()}
    if how == 'missing': return {k: v for k, v in tensors.items() if k != first}
    if how == 'left over': return tensors | {'body.extra': torch.zeros(1)}
    if how == 'shape': return tensors | {first: tensors[first].T.contiguous() if tensors[first].shape[0] != tensors[first].shape[1] else tensors[first][:-1].contiguous()}
    if how == 'empty': return {'denoise_head.out.bias': torch.zeros(1)}

@each_arch
@pytest.mark.parametrize('how', ('prefix', 'other prefix', 'no prefix', 'missing', 'left over', 'shape', 'empty'))
def test_a_file_that_does_not_fit_tensor_by_tensor_is_refused(arch, how, tmp_path):
    dls = toy_dls()
    tiny(dls, arch).save_body(tmp_path/'a')
    with safe_open(tmp_path/'a.safetensors', 'pt') as f: card = f.metadata()
    save_file(_broken(load_file(tmp_path/'a.safetensors'), how), tmp_path/'b.safetensors', card)
    with pytest.raises(ValueError, match='b'): tiny(dls, arch, pretrained=tmp_path/'b')

@each_arch
@pytest.mark.parametrize('change,words', ((dict(d_model=32), ('d_model', '16', '32')), (dict(n_layers=3), ('n_layers', '2', '3')),
    (dict(causal=True), ('bidirectional', 'causal')), (dict(ff_mult=3), ('ff_mult', '3')), (dict(pos='learned'), ('pos', 'learned')), (dict(arch=None), ('arch',))),
    ids=lambda o: '-'.join(o) if isinstance(o, dict) else '')
def test_another_model_is_refused_and_both_are_named(arch, change, words, tmp_path):
    dls = toy_dls()
    tiny(dls, arch).save_body(tmp_path/'a')
    if 'arch' in change: change = dict(arch=next(a for a in archs if a != arch)); words = ('arch', arch, change['arch'])
    with pytest.raises(ValueError) as e: tiny(dls, **(dict(arch=arch, pretrained=tmp_path/'a') | change))
    assert all(w in str(e.value) for w in words), e.value

@each_arch
def test_other_data_is_refused(arch, tmp_path):
    tiny(toy_dls('array3'), arch).save_body(tmp_path/'v')
    tiny(toy_dls('strings'), arch).save_body(tmp_path/'t')
    for x, file in (('array2', 'v'), ('strings', 'v'), ('array3', 't'), ('words', 't')):
        with pytest.raises(ValueError, match='does not fit'): tiny(toy_dls(x), arch, pretrained=tmp_path/file)
    renamed = seq_dls([o.replace('a', 'z') for o in make_x('strings')[0]], None)
    with pytest.raises(ValueError, match='symbols'): tiny(renamed, arch, pretrained=tmp_path/'t')       # as many symbols, other meaning
    assert tiny(toy_dls('ragged'), arch, pretrained=tmp_path/'v').transfer                              # another set with the same channels is fine

@pytest.mark.parametrize('content', (b'', b'junk'*9, None), ids=('empty', 'junk', 'no card'))
def test_a_file_of_another_kind_is_refused(content, tmp_path):
    if content is None: save_file({'a': torch.zeros(1)}, tmp_path/'a.safetensors')
    else: (tmp_path/'a.safetensors').write_bytes(content)
    with pytest.raises(ValueError, match='a.safetensors'): tiny(toy_dls(), pretrained=tmp_path/'a')
    with pytest.raises(FileNotFoundError, match='nowhere'): tiny(toy_dls(), pretrained=tmp_path/'nowhere')

def test_a_card_from_elsewhere_is_refused(tmp_path):
    for i, card in enumerate(('{"a": 1}', '{')):
        save_file({'body.a': torch.zeros(1)}, tmp_path/f'{i}.safetensors', {'lrpt_nb': card})
        with pytest.raises(ValueError, match='card'): tiny(toy_dls(), pretrained=tmp_path/f'{i}')

def test_weights_that_are_no_numbers_are_refused(tmp_path):
    learn = tiny(toy_dls())
    learn.model.body.norm.weight.data[0] = float('nan')
    learn.save_body(tmp_path/'a')
    with pytest.raises(ValueError, match='norm.weight'): tiny(toy_dls(), pretrained=tmp_path/'a')

@each_arch
def test_settings_that_are_not_weights_may_differ(arch, tmp_path):
    dls = toy_dls()
    tiny(dls, arch).save_body(tmp_path/'a')
    assert tiny(dls, arch, pretrained=tmp_path/'a', dropout=0.3).transfer      # more dropout for fine-tuning is common

def test_a_card_says_every_setting(tmp_path):
    tiny(toy_dls(), 'transformer', d_model=32).save_body(tmp_path/'a')         # the number of heads comes from a rule that may change
    assert tiny(toy_dls(), 'transformer', d_model=32, n_heads=2, pretrained=tmp_path/'a').transfer
    with pytest.raises(ValueError, match='n_heads'): tiny(toy_dls(), 'transformer', d_model=32, n_heads=4, pretrained=tmp_path/'a')

# 36: the number that was reported can be had again

@each_arch
@each_input
@each_way
def test_validation_loss_is_one_number(arch, x, causal, tmp_path):
    dls = toy_dls(x, bs=3)
    learn = denoise_learner(dls, tiny(dls, arch, causal=causal).model.body, seed=1)
    with learn.no_bar(): learn.fit(3, 1e-2)
    said = learn.card()
    assert said['valid_loss'] == min(row[1] for row in learn.recorder.values) and (said['epochs'], said['steps']) == (3, 3*len(learn.dls.train))
    first = learn.validate()
    assert first == learn.validate() and first[0] == said['valid_loss']
    assert learn.card() == said, 'validating changed what the card says'
    learn.get_preds()
    assert learn.validate() == first and learn.card() == said
    other = denoise_learner(dls, learn.model.body, head=learn.model.head, seed=99)
    assert other.validate() == first                          # another seed of training masks

@each_arch
def test_the_card_counts_all_denoising_epochs(arch):
    dls = toy_dls()
    learn = denoise_learner(dls, tiny(dls, arch).model.body)
    with learn.no_bar():
        learn.fit(2)
        said = learn.card()
        learn.lr_find(num_it=20, show_plot=False)
        assert learn.card() == said, 'a search that restores the weights is on the card'
        learn.fit(1)
    assert (learn.card()['epochs'], learn.card()['steps']) == (3, 3*len(learn.dls.train)), 'the card forgets the first fit'

def test_validation_loss_is_the_same_in_a_new_process(tmp_path):
    said = {}
    for arch in archs:
        for x in few_inputs:
            for causal in (False, True):
                learn = tiny(toy_dls(x, bs=3), arch, causal=causal)
                with learn.no_bar(): learn.self_pretrain(2, save_to=tmp_path/f'{arch}-{x}-{causal}')
                said[f'{arch}-{x}-{causal}'] = learn.pretrain_history[-1]['valid_loss']
    out = run_python('''
import json, sys
from toys import *
from lrpt_nb.learner import denoise_learner
said = {}
for f in sorted(Path(sys.argv[1]).glob('*.safetensors')):
    learn = denoise_learner(toy_dls(f.stem.split('-')[1], bs=3), f, 'causal' if f.stem.endswith('True') else 'masked')
    with learn.no_bar(): said[f.stem] = learn.validate()[0]
print(json.dumps(said))''', tmp_path, cwd=tmp_path)
    assert json.loads(out) == pytest.approx(said, rel=1e-9) and len(said) == len(archs)*6

def _at_start(learn, **kwargs):
    "Weights and masks a further `self_pretrain` begins with."
    seen = {}
    def look(cb): seen.setdefault('body', weights(cb.model.body)); seen.setdefault('head', weights(cb.model.head))
    def mask(cb): seen.setdefault('mask', cb.xb[2])
    with learn.no_bar(): learn.self_pretrain(1, cbs=OnEvent(before_fit=look, before_batch=mask), **kwargs)
    return seen

@each_arch
@each_input
def test_a_second_self_pretrain_continues(arch, x, tmp_path):
    learn = tiny(toy_dls(x), arch)
    one = _at_start(learn)
    body, head = weights(learn.model.body), weights(learn.denoise_head)
    again = denoise_learner(learn.dls, learn.model.body, head=learn.denoise_head).validate()[0]
    assert again == learn.pretrain_history[-1]['valid_loss']
    two = _at_start(learn)
    assert same(two['body'], body) and same(two['head'], head) and len(learn.pretrain_history) == 2
    assert one['mask'].shape != two['mask'].shape or not torch.equal(one['mask'], two['mask'])            # not the same masks over again
    three = _at_start(learn, objective=Masked(0.31))
    assert not same(three['head'], weights(learn.denoise_head)) and three['head'].keys() == head.keys()

@each_arch
def test_a_saved_body_continues(arch, tmp_path):
    learn = tiny(toy_dls(), arch)
    with learn.no_bar(): learn.self_pretrain(1, save_to=tmp_path/'a')
    other = tiny(toy_dls(), arch, pretrained=tmp_path/'a')
    seen = _at_start(other)
    assert same(seen['body'], {k.removeprefix('body.'): v for k, v in load_file(tmp_path/'a.safetensors').items() if k.startswith('body.')})
    assert same(seen['head'], weights(learn.denoise_head)), 'the denoising head in the file was not used'

# 38: masks

def _masks(learn, n_epoch=2, between=None):
    "`(epoch, training, mask, first value of each row)` of every batch."
    seen = []
    def look(cb): seen.append((cb.epoch, bool(cb.training), cb.xb[2].clone(), cb.yb[0][:, 0].clone()))
    with learn.no_bar():
        if between is None: learn.fit(n_epoch, cbs=OnEvent(before_batch=look))
        else:
            for _ in range(n_epoch): learn.fit(1, cbs=OnEvent(before_batch=look)); between(learn)
    return seen

def _pick(seen, training, epoch): return [o for e, t, *o in seen if t == training and e == epoch]
def _equal(a, b): return len(a) == len(b) and all(torch.equal(p, q) for o, w in zip(a, b) for p, q in zip(o, w))

@each_arch
@each_input
def test_masks_change_in_training_and_stay_in_validation(arch, x):
    dls = toy_dls(x)
    make = lambda seed: denoise_learner(dls, tiny(dls, arch).model.body, seed=seed)
    a, b, c = _masks(make(0)), _masks(make(0)), _masks(make(5))
    first, second = ([m for m, _ in _pick(a, True, e)] for e in (0, 1))
    assert not any(m.shape == w.shape and torch.equal(m, w) for m, w in zip(first, second)), 'the same training masks in two epochs'
    assert _equal(_pick(a, False, 0), _pick(a, False, 1)) and _equal(_pick(a, False, 0), _pick(c, False, 1)), 'validation masks changed'
    assert _equal(_pick(a, True, 0), _pick(b, True, 0)) and _equal(_pick(a, True, 1), _pick(b, True, 1)), 'one seed, two streams'
    assert not _equal(_pick(a, True, 0), _pick(c, True, 0))

@each_arch
def test_validation_does_not_disturb_the_training_stream(arch):
    x, _ = make_x('array3', 20)
    def run(valid, between=None, n=2):
        dls = seq_dls(x, None, valid=(valid, None), bs=8)
        return _masks(denoise_learner(dls, tiny(dls, arch).model.body, seed=0), n, between)
    few, many = run(x[:2]), run(make_x('array3', 17, 9)[0])
    for e in (0, 1): assert _equal(_pick(few, True, e), _pick(many, True, e))
    plain = run(x[:2], lambda l: None)
    looked = run(x[:2], lambda l: (l.validate(), l.get_preds(), l.show_results()))
    assert _equal([o for _, t, *o in plain if t], [o for _, t, *o in looked if t])

@each_arch
def test_masks_do_not_depend_on_the_global_stream(arch):
    def run(noise):
        dls = toy_dls()
        learn = denoise_learner(dls, tiny(dls, arch).model.body, seed=0)
        if noise: torch.rand(3); np.random.rand(3)
        return _masks(learn, 1)
    assert _equal([o for _, _, *o in run(False)], [o for _, _, *o in run(True)])

# 39: which rows are seen

def _other(x, seed=5):
    "Rows of the same kind from another world: other scale, other symbols, as many steps."
    if isinstance(x, torch.Tensor) or (isinstance(x, np.ndarray) and x.dtype.kind == 'f'): return 1e3+100*x
    if isinstance(x, np.ndarray): return x+50
    return [o.upper() if isinstance(o, str) else [s.upper() if isinstance(s, str) else s+50 for s in o] if isinstance(o, list) else 1e3+100*o for o in x]

@pytest.mark.parametrize('x', inputs)
@each_arch
def test_validation_and_test_rows_leave_no_trace(arch, x):
    rows, more = make_x(x, 24)
    held = list(range(16, 24))
    changed = _other(rows)
    mixed = [changed[i] if i in held else rows[i] for i in range(24)]
    if isinstance(rows, np.ndarray): mixed = np.stack(mixed)
    if isinstance(rows, torch.Tensor): mixed = torch.stack(mixed)
    def run(r):
        dls = seq_dls(r, make_y('number', 24), valid=held[:4], test=held[4:], bs=8, **more)
        learn = tiny(dls, arch)
        with learn.no_bar(): learn.self_pretrain(1)
        return dls, learn
    (da, a), (db, b) = run(rows), run(mixed)
    assert torch.equal(da.train.dataset.x.nan_to_num(7) if da.train.dataset.x.is_floating_point() else da.train.dataset.x,
                       db.train.dataset.x.nan_to_num(7) if db.train.dataset.x.is_floating_point() else db.train.dataset.x)
    assert da.prep.symbols == db.prep.symbols and da.prep.max_len == db.prep.max_len
    assert same(weights(a.model.body), weights(b.model.body)), 'validation or test rows changed the weights'

def _rows_seen(rows='train', labels=1., frac=1.):
    "Numbers of the rows a `self_pretrain` trained on; each row holds its number."
    x = np.repeat(np.arange(30.)[:, None, None], 6, 1)
    dls = seq_dls(x, np.arange(30) % 2, valid=list(range(20, 25)), test=list(range(25, 30)), bs=8, normalize=False, frac=frac)
    if labels < 1: dls = dls.with_labels(labels)
    learn, seen = tiny(dls), set()
    def look(cb):
        if cb.training: seen.update(cb.yb[0][:, 0, 0].int().tolist())
    with learn.no_bar(): learn.self_pretrain(1, cbs=OnEvent(before_batch=look), rows=rows)
    return seen, learn

@pytest.mark.parametrize('rows,want', (('train', 20), ('train+valid', 25), ('train+test', 25), ('all', 30)))
def test_rows_are_seen_when_asked_for_by_name(rows, want, tmp_path):
    seen, learn = _rows_seen(rows)
    assert seen == set(range(20)) | (set(range(20, 25)) if 'valid' in rows or rows == 'all' else set()) | (set(range(25, 30)) if 'test' in rows or rows == 'all' else set())
    assert len(seen) == want and learn.pretrain_history[-1]['data']['pretrain_rows'] == rows
    assert card_of(learn.save_body(tmp_path/'a'))['data']['pretrain_rows'] == rows
    with pytest.raises(ValueError, match='train'): learn.self_pretrain(1, rows='everything')

def test_fewer_labels_or_rows():
    assert _rows_seen(labels=0.2)[0] == set(range(20))        # fewer labels: pretraining sees all training rows ...
    seen, learn = _rows_seen(frac=0.5)                        # ... fewer rows: the same rows in both stages
    assert len(seen) == 10 and seen < set(range(20)) and seen == set(learn.dls.train.dataset.x[:, 0, 0].int().tolist())
    with pytest.raises(ValueError, match='test'): tiny(toy_dls()).self_pretrain(1, rows='all')

def test_fewer_labels_hide_the_scale_of_the_others():
    x, y = make_x('array3', 30)[0], np.arange(30.)
    part = seq_dls(x, y, valid=[29]).with_labels(0.2)
    kept = part.train.dataset.y.int().tolist()
    y[[i for i in range(29) if i not in kept]] = 1e6
    again = seq_dls(x, y, valid=[29]).with_labels(0.2)
    assert again.train.dataset.y.int().tolist() == kept and torch.equal(part.target.mean, again.target.mean) and torch.equal(part.target.std, again.target.std)

def test_what_was_seen_stays_on_record(tmp_path):
    learn = _rows_seen('all')[1]
    with learn.no_bar(): learn.self_pretrain(1)               # a later, clean stage does not clean the body
    first = learn.save_body(tmp_path/'a')
    assert '"all"' in first.with_suffix('.json').read_text(), 'the card forgets that test rows were seen'
    later = sp_learner(learn.dls, 'transformer', pretrained=first, seed=1)
    second = later.save_body(tmp_path/'b')                    # nor does saving it again
    assert '"all"' in second.with_suffix('.json').read_text() and card_of(second)['epochs'] > 0 and card_of(second)['objective']['name'] == 'masked'
    with later.no_bar(): later.self_pretrain(1, save_to=tmp_path/'c')
    assert '"all"' in (tmp_path/'c.json').read_text()

def test_the_card_counts_supervised_epochs(tmp_path):
    def card(*steps):
        learn = tiny(toy_dls())
        with learn.no_bar():
            for f in steps: f(learn)
        path = learn.save_body(tmp_path/'a')
        return card_of(path)['fine_tuned_epochs'], any(k.startswith('denoise_head') for k in load_file(path))
    pretrain, look = lambda l: l.self_pretrain(1), lambda l: (l.validate(), l.get_preds(), l.predict(make_x('array3')[0][0]))
    def broken_off(l):
        def stop(cb):
            if cb.training and cb.iter == 1: raise Stop
        with pytest.raises(Stop): l.fit(3, cbs=OnEvent(after_batch=stop))
    assert card(pretrain) == (0, True)
    assert card(pretrain, look) == (0, True), 'predicting counted as fine-tuning'
    assert card(pretrain, lambda l: l.lr_find(num_it=20, show_plot=False)) == (0, True), 'a search that restores the weights counted as fine-tuning'
    assert card(pretrain, broken_off) == (1, False), 'weights from a broken-off fit pass for pretrained ones'
    assert card(pretrain, lambda l: l.fit(2)) == (2, False)
    assert card(pretrain, lambda l: l.fit(2), lambda l: l.fit(3), look)[0] == 5
    assert card(lambda l: l.fit(2))[0] == 2

def test_labels_once_seen_stay_on_record(tmp_path):
    learn, two = tiny(toy_dls()), '"fine_tuned_epochs": 2'
    with learn.no_bar(): learn.self_pretrain(1); learn.fit(2)
    assert two in learn.save_body(tmp_path/'a').with_suffix('.json').read_text()
    later = tiny(toy_dls(), pretrained=tmp_path/'a', seed=1)
    assert two in later.save_body(tmp_path/'b').with_suffix('.json').read_text(), 'loaded and saved again, the body claims never to have seen a label'
    with later.no_bar(): later.self_pretrain(1, save_to=tmp_path/'c')
    assert two in (tmp_path/'c.json').read_text()
    first = tiny(toy_dls())
    with first.no_bar(): first.fit(2); first.self_pretrain(1, save_to=tmp_path/'d')
    assert two in (tmp_path/'d.json').read_text() and card_of(tmp_path/'d')['fine_tuned_epochs'] == 0

# nothing half-done

class Stop(Exception): pass

@each_arch
@pytest.mark.parametrize('error', (Stop, KeyboardInterrupt))
@pytest.mark.parametrize('frozen', (False, True), ids=('free', 'frozen'))
def test_an_interrupted_self_pretrain_changes_nothing(arch, error, frozen):
    learn = tiny(toy_dls(), arch)
    with learn.no_bar():
        learn.fit(1)
        if frozen: learn.freeze()
        def state(): return weights(learn.model), [p.requires_grad for p in learn.model.parameters()], len(learn.pretrain_history), learn.model.head
        before = state()
        def stop(cb):
            if cb.epoch == 1 and cb.training: raise error
        with pytest.raises(error): learn.self_pretrain(3, lr=1e-2, cbs=OnEvent(after_batch=stop))
        after = state()
        assert same(before[0], after[0]), 'a body from the middle of an interrupted run was left in the learner'
        assert before[1:] == after[1:]
        learn.self_pretrain(1); learn.fit(1)

@each_arch
def test_a_cancelled_self_pretrain_keeps_its_best_or_says_no(arch):
    learn = tiny(toy_dls(), arch)
    def stop(cb):
        if cb.epoch == 2: raise CancelFitException
    with learn.no_bar(): learn.self_pretrain(5, cbs=OnEvent(before_batch=stop))          # what early stopping does
    assert len(learn.pretrain_history) == 1 and learn.pretrain_history[0]['epochs'] == 2
    def at_once(cb): raise CancelFitException
    learn = tiny(toy_dls(), arch)
    before = weights(learn.model)
    with learn.no_bar(), pytest.raises(Exception, match='epoch'): learn.self_pretrain(5, cbs=OnEvent(before_batch=at_once))
    assert same(before, weights(learn.model)) and not learn.pretrain_history

@pytest.mark.parametrize('where', ('under a file', 'a folder'))
def test_a_place_that_cannot_be_written_is_found_before_training(where, tmp_path):
    (tmp_path/'file').write_text('x')
    (tmp_path/'dir.safetensors').mkdir()
    path = tmp_path/'file'/'body' if where == 'under a file' else tmp_path/'dir'
    learn, trained = tiny(toy_dls()), []
    before = weights(learn.model)
    with learn.no_bar(), pytest.raises(OSError): learn.self_pretrain(1, save_to=path, cbs=OnEvent(after_batch=lambda cb: trained.append(1)))
    assert not trained and same(before, weights(learn.model)), 'epochs were spent before the path was found bad'
    with pytest.raises(OSError): learn.save_body(path)
    assert sorted(o.name for o in tmp_path.iterdir()) == ['dir.safetensors', 'file'], 'something was left half-written'

@each_arch
def test_a_diverged_self_pretrain_is_not_handed_over(arch):
    learn = tiny(toy_dls(), arch)
    before = weights(learn.model)
    with learn.no_bar(), pytest.raises(Exception, match='lr'): learn.self_pretrain(1, lr=float('nan'))
    assert same(before, weights(learn.model)) and not learn.pretrain_history

@each_arch
@pytest.mark.parametrize('valid', ('single steps', 'missing'))
@pytest.mark.filterwarnings('ignore:.*never a number')
def test_validation_rows_with_nothing_to_score_are_no_divergence(arch, valid):
    x = make_x('ragged')[0]
    x[:3] = [o[:1] if valid == 'single steps' else o*np.nan for o in x[:3]]
    learn = tiny(seq_dls(x, None, valid=[0, 1, 2], bs=8), arch, causal=True)
    before = weights(learn.model.body)
    with learn.no_bar(): learn.self_pretrain(1)
    assert not same(before, weights(learn.model.body)) and learn.pretrain_history[-1]['valid_loss'] is None

@each_arch
def test_bad_arguments_change_nothing(arch):
    learn = tiny(toy_dls(), arch)
    learn.freeze()
    before = [p.requires_grad for p in learn.model.parameters()], weights(learn.model)
    for bad in (dict(n_epoch=0), dict(n_epoch=1.5), dict(n_epoch=1, rows='x'), dict(n_epoch=1, rows='all'), dict(n_epoch=1, objective='x'), dict(n_epoch=1, objective='causal'), dict(n_epoch=1, objective=Masked)):
        with pytest.raises((ValueError, TypeError)) as e: learn.self_pretrain(**bad)
        assert not isinstance(e.value, TypeError) or 'objective' in str(e.value)
        assert [p.requires_grad for p in learn.model.parameters()] == before[0] and same(weights(learn.model), before[1]), bad
