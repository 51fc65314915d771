"LM bodies: nothing fetched or imported early, real data through them, traps, keeping and training."
import copy, json, os, pickle, subprocess, sys

import numpy as np
import pytest
import torch
from conftest import ROOT
torch.set_num_threads(1)
tf = pytest.importorskip('transformers')

from lrpt_nb.core import rel_err, set_seed
from lrpt_nb.data import seq_dls
from lrpt_nb.lm import grey_levels, lm_body, lm_settings
from lrpt_nb.models import DenoiseHead, PoolHead, SeqModel
from lrpt_nb.objectives import get_objective
from lrpt_nb.transfer import load_tensors, read_card, write_body
from safetensors.torch import load_file

def tokenizer():
    "Bytes, with the numbers 0 to 255 as tokens."
    import tokenizers as tk
    t = tk.Tokenizer(tk.models.BPE())
    t.pre_tokenizer, t.decoder = tk.pre_tokenizers.ByteLevel(add_prefix_space=False), tk.decoders.ByteLevel()
    t.train_from_iterator([str(i) for i in range(256)], tk.trainers.BpeTrainer(
        vocab_size=2000, special_tokens=['<|endoftext|>', '<|padding|>'], initial_alphabet=tk.pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return tf.PreTrainedTokenizerFast(tokenizer_object=t, eos_token='<|endoftext|>')

shape = dict(hidden_size=16, num_hidden_layers=2, max_position_embeddings=64, vocab_size=700, bos_token_id=None, eos_token_id=0)
heads = dict(num_attention_heads=2)
configs = dict(
    gpt_neox=lambda: tf.GPTNeoXConfig(intermediate_size=32, **heads, **shape),
    gpt2=lambda: tf.GPT2Config(**heads, **shape),
    llama=lambda: tf.LlamaConfig(intermediate_size=32, num_key_value_heads=1, pad_token_id=1, **heads, **shape),
    opt=lambda: tf.OPTConfig(ffn_dim=32, word_embed_proj_dim=8, pad_token_id=1, **heads, **shape),          # vectors narrower than the states
    gemma3=lambda: tf.Gemma3TextConfig(intermediate_size=32, head_dim=8, num_key_value_heads=1, pad_token_id=1, **heads, **shape), # scales what it looks up
    mistral=lambda: tf.MistralConfig(intermediate_size=32, num_key_value_heads=1, sliding_window=8, **heads, **shape),
    mamba=lambda: tf.MambaConfig(**{k: v for k, v in shape.items() if k != 'max_position_embeddings'}))   # no attention at all
families = list(configs)

@pytest.fixture(scope='session')
def folders(tmp_path_factory):
    "A folder a family, with its output layer saved too."
    tok, out = tokenizer(), {}
    tf.utils.logging.set_verbosity_error(); tf.utils.logging.disable_progress_bar()
    for k, config in configs.items():
        set_seed(0)
        out[k] = tmp_path_factory.mktemp('lm')/k
        tf.AutoModelForCausalLM.from_config(config(), dtype=torch.float32).save_pretrained(out[k])
        tok.save_pretrained(out[k])
    return out

def chars(n=24, seed=0):
    r = np.random.default_rng(seed)
    return seq_dls([''.join(r.choice(list('ab c(),7\n'), k)) for k in r.integers(1, 30, n)], ['no', 'yes']*(n//2), bs=8)

def pixels(n=24, seed=0):
    r = np.random.default_rng(seed)
    x = (127.5+127.5*np.sin(r.uniform(.2, .5, (n, 1, 1))*np.arange(30)[:, None]+r.uniform(0, 6, (n, 1, 1)))).round()
    x[:, 0], x[:, 1] = 0, 255
    return seq_dls(x.astype('float32'), ['no', 'yes']*(n//2), bs=8), x

def body_for(dls, **kw): return lm_body(d_in=dls.prep.d_in, vocab_size=dls.prep.vocab_size, **(lm_settings(dls) | kw))
def batch(dls):
    b = dls.train.new(shuffle=False).one_batch()
    return b[0], b[1] if dls.train.dataset.n_inp == 2 else None

# nothing early, nothing fetched

def test_importing_loads_no_transformers():
    code = "import sys, lrpt_nb.lm; print([o for o in ('transformers', 'tokenizers') if o in sys.modules])"
    res = subprocess.run([sys.executable, '-W', 'ignore', '-c', code], capture_output=True, text=True)
    assert res.stdout.strip() == '[]', res.stderr

def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, 'transformers', None)
    with pytest.raises(ImportError, match=r"pip install 'lrpt_nb\[lm\]'"): lm_body(vocab_size=3)

def test_no_connection_is_tried(folders):
    "In a process of its own, with the hub's offline switch off."
    code = f"""
import socket
tried = []
def refuse(*args, **kw): tried.append(args); raise OSError('no network')
socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
from lrpt_nb.lm import lm_body
for random in (False, True): lm_body(d_in=1, low=0, high=1, source={str(folders['gpt_neox'])!r}, random=random)
lm_body(vocab_size=9, d_model=16, n_layers=1)
try: lm_body(vocab_size=9, symbols=list('abcdefghi'), source='EleutherAI/pythia-70m-deduped')
except FileNotFoundError as e: assert 'never downloaded' in str(e)
print(tried)"""
    env = {k: v for k, v in os.environ.items() if k not in ('HF_HUB_OFFLINE', 'TRANSFORMERS_OFFLINE')} | dict(HF_HUB_OFFLINE='0')
    res = subprocess.run([sys.executable, '-W', 'ignore', '-c', code], capture_output=True, text=True, env=env)
    assert res.stdout.strip() == '[]', res.stderr

@pytest.mark.parametrize('lacking, says', [('config.json', 'lacks its config'), ('model.safetensors', 'lacks its weights'), ('tokenizer*', 'lacks its tokenizer')])
def test_an_incomplete_folder_says_what_it_lacks(folders, tmp_path, lacking, says):
    for f in folders['gpt2'].iterdir(): (tmp_path/f.name).write_bytes(f.read_bytes())
    lm_body(d_in=1, low=0, high=1, source=tmp_path)
    for f in tmp_path.glob(lacking): f.unlink()
    with pytest.raises(FileNotFoundError, match=says): lm_body(d_in=1, low=0, high=1, source=tmp_path)

@pytest.mark.parametrize('family', ['gpt_neox', 'llama'])
def test_files_of_other_kinds(folders, tmp_path, family):
    "An older weights file opens; weights that are not all there do not; half precision becomes float32."
    for f in folders[family].glob('*.json'): (tmp_path/f.name).write_bytes(f.read_bytes())
    config = json.loads((tmp_path/'config.json').read_text())
    (tmp_path/'config.json').write_text(json.dumps(config | dict(dtype='float16')))
    tensors = load_file(folders[family]/'model.safetensors')
    torch.save({k: v.half() for k, v in tensors.items()}, tmp_path/'pytorch_model.bin')
    kw, x = dict(d_in=1, low=0, high=1), torch.rand(2, 9, 1)
    a, b = lm_body(source=tmp_path, **kw).eval(), lm_body(source=folders[family], **kw).eval()
    assert {p.dtype for p in a.parameters()} == {torch.float32}
    assert 0 < rel_err(a(x), b(x)) < 1e-2
    lost = next(k for k in tensors if 'layers.1' in k)
    torch.save({k: v for k, v in tensors.items() if k != lost}, tmp_path/'pytorch_model.bin')
    with pytest.raises(ValueError, match='1 weights of the'): lm_body(source=tmp_path, **kw)

# the task's symbols are the LM's tokens

@pytest.mark.parametrize('family', families)
def test_characters_of_a_data_set(folders, family):
    dls, tok = chars(), tokenizer()
    body = body_for(dls, source=folders[family]).eval()
    said = [tok.decode([i]) for i in body.config['ids']]
    assert said == ['<|padding|>', '<|endoftext|>', *dls.prep.symbols[2:]]
    x, lengths = batch(dls)
    model = tf.AutoModelForCausalLM.from_pretrained(folders[family], dtype=torch.float32).eval().base_model
    for row, n, h in zip(x, lengths, body(x, lengths)):
        ids = [tok.encode(str(s))[0] for s in dls.prep.decode(row, int(n))]
        with torch.no_grad(): assert rel_err(h[:n], model(torch.tensor([ids])).last_hidden_state[0]) < 1e-5

def test_pixels_of_a_data_set_are_their_own_bytes(folders):
    dls, raw = pixels()
    body, tok = body_for(dls, source=folders['gpt_neox']), tokenizer()
    assert [tok.decode([i]) for i in body.config['ids']] == [str(i) for i in range(256)]
    ds = dls.train.dataset
    assert torch.equal(grey_levels(ds.x, body.config['low'], body.config['high']).float(), torch.tensor(np.stack([ds.raw(i) for i in range(len(ds))])).round())
    valid = dls.valid.dataset
    assert np.array_equal(grey_levels(valid.x, body.config['low'], body.config['high']), np.stack([valid.raw(i) for i in range(len(valid))]).round())

def test_integers_are_written_as_numbers(folders):
    dls = seq_dls(np.random.default_rng(0).integers(0, 256, (20, 30)), [0, 1]*10, bs=8, x_kind='tokens')
    ids, tok = body_for(dls, source=folders['gpt2']).config['ids'], tokenizer()
    assert [tok.decode([i]) for i in ids[2:]] == [str(s) for s in dls.prep.symbols[2:]]

def test_listops_needs_fresh_vectors(folders):
    dls = seq_dls([s.split() for s in ('[MAX 2 9 ]', '[MIN 4 [MAX 5 8 ] ]', '[SM 1 2 ]', '[MED 3 1 ]')*5], [0, 1]*10, bs=8)
    with pytest.raises(ValueError, match=r"4 symbols are not one token each of source=.*'\[MAX', '\[MED', '\[MIN', '\[SM'"): body_for(dls, source=folders['gpt_neox'])
    body = body_for(dls, source=folders['gpt_neox'], new_symbols='train')
    x, lengths = batch(dls)
    assert body(x, lengths).shape == (*x.shape, 16)
    assert sum(i is None for i in body.config['ids']) == 4

# traps

@pytest.mark.parametrize('family', families)
@pytest.mark.parametrize('n', [1, 2, 3, 7, 31, 33, 63, 64])
def test_lengths(folders, family, n):
    "22: every length up to the longest; 13: alone and padded; 31: the future."
    body = lm_body(d_in=1, low=0, high=1, source=folders[family]).eval()
    x, lengths = torch.rand(2, n, 1), torch.tensor([n, (n+1)//2])
    h = body(x, lengths)
    for i, k in enumerate(lengths): assert rel_err(h[i, :k], body(x[i:i+1, :k])[0]) < 1e-5
    if n > 1: assert rel_err(body(torch.cat([x[:, :-1], 1-x[:, -1:]], 1))[:, :-1], body(x)[:, :-1]) < 1e-5
    if body.config['max_len']:
        with pytest.raises(ValueError, match='length 65, but this LM was made for max_position_embeddings=64'): body(torch.rand(1, 65, 1))

@pytest.mark.parametrize('family', families)
def test_pads_get_no_gradient(folders, family):
    "20, 13: nothing flows back from padding, and what stands there, NaN too, changes no gradient."
    lengths, grads = torch.tensor([9, 4]), []
    x = torch.rand(2, 9, 1)
    for fill in (0., 1e3, float('nan')):
        body = lm_body(d_in=1, low=0, high=1, source=folders[family]).eval()
        xb = x.clone(); xb[1, 4:] = fill
        set_seed(0)
        SeqModel(body, PoolHead(body.d_model, 2))(xb, lengths).square().sum().backward()
        grads.append([p.grad for p in body.parameters()])
    for other in grads[1:]:
        for a, b in zip(grads[0], other): assert (a is None and b is None) or torch.equal(a, b)
    assert all(g is None or g.isfinite().all() for g in grads[0])

@pytest.mark.parametrize('family', families)
def test_what_stands_in_padding_is_not_read(folders, family):
    "13: not even ids that do not exist; the answers in the padding are the same too."
    lengths = torch.tensor([9, 4])
    for kw, x, fills in ((dict(d_in=1, low=0, high=1), torch.rand(2, 9, 1), (1e3, float('nan'))), (dict(vocab_size=5, symbols=list('abcde')), torch.randint(5, (2, 9)), (-1000, 1000))):
        body = lm_body(source=folders[family], **kw).eval()
        want = body(x, lengths)
        for fill in fills:
            x[1, 4:] = fill
            assert torch.equal(body(x, lengths), want)

@pytest.mark.parametrize('family', ['gpt_neox', 'gpt2', 'llama'])
def test_a_frozen_lm_stays(folders, family):
    "12: no step, decay or later `requires_grad_` moves it."
    body = lm_body(d_in=1, low=0, high=1, source=folders[family], freeze=True)
    model, before = SeqModel(body, PoolHead(body.d_model, 2)), {k: v.clone() for k, v in body.state_dict().items()}
    for p in model.parameters(): p.requires_grad_(True)
    x, mask = torch.rand(4, 9, 1), torch.arange(9).expand(4, 9) == 5
    x[:, 2] = float('nan')
    opt = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=.1)
    for _ in range(3):
        opt.zero_grad(); model(x, None, mask).square().sum().backward(); opt.step()
    moved = {k for k, v in body.state_dict().items() if not torch.equal(v, before[k])}
    assert moved == {f'embed.{k}' for k in ('table', 'missing', 'mask_vector')}

# keeping and training

@pytest.mark.parametrize('family', families)
@pytest.mark.parametrize('freeze', [False, True])
def test_saved_with_a_card_and_built_again(folders, family, freeze, tmp_path):
    dls = chars()
    body = body_for(dls, source=folders[family], freeze=freeze).eval()
    write_body(tmp_path/'body', body, dict(config=body.config, objective=dict(name='none'), input={}, epochs=0, valid_loss=None))
    config = read_card(tmp_path/'body')['config']
    assert config['arch'] == 'lm' and config == json.loads(json.dumps(body.config))
    again = lm_body(**{k: v for k, v in config.items() if k != 'arch'}).eval()
    load_tensors(again, {k.removeprefix('body.'): v for k, v in load_file(tmp_path/'body.safetensors').items()}, 'the body')
    x, lengths = batch(dls)
    assert torch.equal(again(x, lengths), body(x, lengths)) and len(list(again.parameters())) == len(list(body.parameters()))

@pytest.mark.parametrize('family', ['gpt_neox', 'gpt2', 'llama'])
def test_copied_and_pickled(folders, family):
    "54: `export` pickles the model."
    x = torch.rand(2, 9, 1)
    for freeze in (False, True):
        body = lm_body(d_in=1, low=0, high=1, source=folders[family], freeze=freeze, dropout=0.)
        body.checkpointing = True
        for again in (pickle.loads(pickle.dumps(body)), copy.deepcopy(body)):
            assert torch.equal(again(x), body(x)) and again.checkpointing and again.causal and again.d_model == 16
            again(x).sum().backward()

def test_the_seed_decides_random_weights(folders):
    def weights(seed, **kw):
        set_seed(seed)
        return lm_body(vocab_size=9, **kw).state_dict()
    for kw in dict(d_model=16, n_layers=1), dict(source=configs['gpt2']().to_dict()):
        a, b, c = weights(0, **kw), weights(0, **kw), weights(1, **kw)
        assert all(torch.equal(a[k], b[k]) for k in a) and not torch.equal(a['embed.table'], c['embed.table'])

@pytest.mark.parametrize('kind', ['chars', 'pixels'])
@pytest.mark.parametrize('objective', ['auto', 'masked'])
def test_self_pretraining_then_fine_tuning_learns(folders, kind, objective):
    "Both objectives and both kinds of input: the loss falls, in float32 and bf16."
    dls = chars() if kind == 'chars' else pixels()[0]
    x, lengths = batch(dls)
    y = torch.arange(len(x)) % 2
    for half in (False, True):
        set_seed(0)
        body = body_for(dls, source=folders['gpt_neox'])
        obj = get_objective(objective, body.causal, dls.prep.is_tokens, None)
        head = DenoiseHead(16, obj.head_width(dls.prep.d_in, dls.prep.vocab_size))
        def denoise():
            seen, target, weight = obj(x, lengths, torch.Generator().manual_seed(0))
            return obj.loss(SeqModel(body, head)(seen.x, lengths, seen.mask).float(), target, weight)
        def classify(): return torch.nn.functional.cross_entropy(SeqModel(body, pool)(x, lengths), y)
        pool = PoolHead(body.d_model, 2)
        for step, module in (denoise, head), (classify, pool):
            opt, losses = torch.optim.Adam([*body.parameters(), *module.parameters()], 1e-2), []
            for _ in range(25):
                with torch.autocast('cpu', torch.bfloat16, enabled=half): loss = step()
                opt.zero_grad(); loss.backward(); opt.step()
                losses.append(loss.item())
            assert np.isfinite(losses).all() and losses[-1] < .8*losses[0], (step.__name__, losses[0], losses[-1])

# by name, through the learner

@pytest.mark.parametrize('x', ('strings', 'array2'))
def test_a_learner_takes_an_lm_by_name(x, tmp_path, monkeypatch):
    from toys import toy_dls
    from lrpt_nb.learner import load_learner, sp_learner
    monkeypatch.chdir(tmp_path)
    dls, kw = toy_dls(x), dict(arch='lm', causal=True, d_model=32, n_layers=1, new_symbols='train', seed=0)
    learn = sp_learner(dls, **kw)
    with learn.no_bar(), learn.no_logging():
        learn.self_pretrain(1)
        learn.save_body('b')
        learn.fit_one_cycle(1, 1e-3)
    learn.export('m.pkl')
    rows = dls.test_dl([dls.valid_ds.raw(i) for i in range(3)])
    assert torch.allclose(load_learner('m.pkl').get_preds(dl=rows)[0], learn.get_preds(dl=rows)[0], atol=1e-5)
    again = sp_learner(dls, 'lm', causal=True, pretrained='b')
    assert len(again.transfer.loaded) == len(learn.model.body.state_dict())
    with pytest.raises(ValueError, match='causal'): sp_learner(dls, 'lm')
