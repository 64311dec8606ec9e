"""The model card: what an encoder is, how to open it, what it was trained on, and how it scored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from embrew.files.formats import GUARD
from embrew.identity import describe
from embrew.model.encoder_module import CardFacts, EncoderModule
from embrew.model.layers import causal_layers

STOCK_CODE = """```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("PATH")
queries = model.encode_query(["how do I …?"])
documents = model.encode_document(["…"])
print(model.similarity(queries, documents))
```

`parity.json` holds reference texts with token ids and vectors: another runtime that gives the same ids and vectors
runs the same model.
"""
MARKERS = """
Their vectors are rows of the vocabulary, and `<|NAME.HASH.NUMBER|>` are their tokens. A text that holds such a token's
name is read as if it held the vector: keep these names out of texts. A context counts among the tokens of a text, so
that less of a long text is read than with a plain prompt.
"""
EMBREW_CODE = """```python
from embrew import Encoder

encoder = Encoder.from_pretrained("PATH")
queries = encoder.encode_query(["how do I …?"])
documents = encoder.encode_document(["…"])
print(encoder.similarity(queries, documents))
```

For Sentence-Transformers alone, write a stock folder first, with `embrew export PATH DIROPTIONS`; then
`SentenceTransformer("DIR")` opens it.
"""


def model_card(
    encoder: EncoderModule,
    *,
    stock: Mapping[str, str] | None = None,
    lengths: Mapping[str, int] | None = None,
    notes: Sequence[str] = (),
    opening: str = STOCK_CODE,
) -> str:
    """Return a Hub model card in Markdown, with its metadata as YAML in front.

    Nothing in it depends on the machine: no paths, no times, no hardware.

    Args:
        encoder: described encoder; `encoder.card_facts` has the facts of training.
        stock: the prompts of a folder for other software, where the card is for one.
        lengths: the length limits of the encoder that such a folder was exported from.
        notes: parts in Markdown that follow how it is opened.
        opening: code that opens it in other software; by default, in Sentence-Transformers.
    """
    return f"---\n{_metadata(encoder, stock is not None and opening is STOCK_CODE).to_yaml()}\n---\n\n" + "\n\n".join(
        part.strip() for part in _parts(encoder, stock, lengths, notes, opening)
    ) + "\n"  # fmt: skip


def export_options(encoder: EncoderModule) -> str:
    """Return the options that `embrew export` needs for this encoder: ` --max-length N` if it has two lengths."""
    return "" if len(set(encoder.max_length.values())) == 1 else f" --max-length {encoder.max_seq_length}"


def data_names(facts: CardFacts | None, *, steps: int) -> list[str] | None:
    """Return names of the data sets of all training, from what training noted; None: it noted nothing, or not all."""
    if facts is None or any({} in past.get("averaged", {}).get("records", ()) for past in _history(facts)):
        return None if steps else []
    sets = [entry["name"] for past in _history(facts) for entries in past["data"].values() for entry in entries]
    return sorted(set(sets))


def without_scores(facts: CardFacts) -> CardFacts:
    """Return what training noted, without scores, which are those of other weights."""
    return {**facts, "scores": {}, "about": {}}


def _metadata(encoder: EncoderModule, stock: bool) -> ModelCardData:
    facts = encoder.card_facts or CardFacts()
    data = [entry for past in _history(facts) for entries in past["data"].values() for entry in entries]
    results = [
        EvalResult(
            task_type=about["kind"].replace("_", "-"),
            dataset_type=name.removeprefix(GUARD),
            dataset_name=name.removeprefix(GUARD),
            dataset_split=about["split"],
            metric_type=about["metric"],
            metric_value=round(facts["scores"][facts["stage"]][name], 6),
        )
        for name, about in facts.get("about", {}).items()
        if name in facts["scores"].get(facts["stage"], {})
    ]
    return ModelCardData(
        base_model=encoder.base.name if encoder.base.kind == "hub" else None,
        library_name="sentence-transformers" if stock else "embrew",
        pipeline_tag="sentence-similarity",
        tags=[*(["sentence-transformers"] if stock else []), "feature-extraction", "embrew"],
        datasets=sorted({name for entry in data for name in entry["hub"]}) or None,
        model_name=_title(encoder) if results else None,
        eval_results=results or None,
    )


def _title(encoder: EncoderModule) -> str:
    return f"A text encoder on {encoder.base.name}"


def _parts(
    encoder: EncoderModule,
    stock: Mapping[str, str] | None,
    lengths: Mapping[str, int] | None,
    notes: Sequence[str],
    opening: str,
) -> Iterator[str]:
    yield f"# {_title(encoder)}"
    yield _what_it_is(encoder, _longest(encoder, stock is not None, lengths))
    yield "## How to open it\n\n" + (
        EMBREW_CODE.replace("OPTIONS", export_options(encoder)) if stock is None else opening
    )
    if stock is None and encoder.backbone.is_quantized and encoder.base.quantization is not None:
        yield (
            f"The base is quantised to {encoder.base.quantization.type} when it is opened, which needs "
            '`pip install "embrew[qlora]"`.'
        )
    prompts = encoder.prompts if stock is None else stock
    if any(prompts.values()):
        yield "Prompts:\n\n" + "\n".join(f"- `{name}`: `{text!r}`" for name, text in prompts.items())
    if encoder.contexts:
        lines = [
            f"- `{name}`: `{prepared.context.instruction!r}`, {len(prepared.context.demonstrations)} demonstrations, "
            f"{len(prepared.row.ids)} positions"
            for name, prepared in encoder.contexts.items()
        ]
        yield "Contexts, prompts with demonstrations, given as `prompt_name`:\n\n" + "\n".join(lines)
        if stock is not None:
            yield MARKERS
    yield from notes
    if encoder.card_facts is not None:
        yield _scores(encoder.card_facts)
        for past in _history(encoder.card_facts):
            yield _average(past) if "averaged" in past else _training(past, again=past is not encoder.card_facts)


def _longest(encoder: EncoderModule, stock: bool, lengths: Mapping[str, int] | None) -> str:
    """Return the length limits; for a stock folder, which has one, also those of the exported encoder."""
    if not stock:
        return ", ".join(f"{limit} for a {side}" for side, limit in encoder.max_length.items())
    text = f"{encoder.max_seq_length} for any text, with its prompt"
    if lengths and set(lengths.values()) != {encoder.max_seq_length}:
        others = ", ".join(f"{limit} for a {side}" for side, limit in lengths.items())
        text += f" (the encoder that was exported: {others}, so longer texts get other vectors there)"
    return text


def _what_it_is(encoder: EncoderModule, longest: str) -> str:
    described, base = describe(encoder), encoder.base
    where = f"revision {base.revision}" if base.kind == "hub" else f"sha256 {base.sha256}"
    where += f", dequantised from {base.stored_as}" if base.stored_as else ""
    adapters = described["merged_adapters"] + described["adapter"]
    if encoder.backbone.owns_weights:
        weights = "Its weights are all its own" + (", with an adapter on them." if adapters else ".")
    elif adapters:
        weights = f"{adapters} adapter{'s' if adapters > 1 else ''} on the base's weights."
    else:
        weights = "The base's weights, unchanged."
    memory, ratio = described["memory_tokens"], encoder.settings.memory_ratio
    number = f"{memory}" if ratio is None else f"one for every {ratio:g} tokens of a text, at most {memory}"
    kind = "BERT-type encoder" if encoder.backbone.is_bert_type else "causal language model"
    return (
        f"A {kind}, {base.name} ({where}), that turns a text into a vector of {described['dimensions']} dimensions. "
        f"{weights}\n\n"
        f"- template: `{described['template']!r}`\n"
        f"- attention: {encoder.attention.mode}{_causal_layers(encoder)}\n"
        f"- pooling: {encoder.pooling.mode} over {encoder.pooling.over}\n"
        + (f"- centre: {_center(encoder)}\n" if encoder.center is not None else "")
        + (f"- layers: the first {encoder.num_layers} of the base's\n" if encoder.num_layers else "")
        + (f"- memory tokens: {number}, added automatically\n" if memory else "")
        + f"- longest text in tokens: {longest}\n"
        f"- vectors: {'unit length' if encoder.normalize else 'not normalised'}, compared by cosine\n"
    )


def _center(encoder: EncoderModule) -> str:
    components = encoder.pooling.components
    rest = "" if components is None else f", and their first {components} principal components, are subtracted"
    return f"the mean of training texts' vectors{rest or ' is subtracted'}, before normalisation"


def _causal_layers(encoder: EncoderModule) -> str:
    """Return, of a bidirectional hybrid model, which of its layers are not."""
    others = [] if encoder.attention.mode == "causal" else causal_layers(getattr(encoder.backbone, "inner", None))
    kinds = ", ".join(sorted(set(others)))
    return f", except {len(others)} of its layers, which read from left to right ({kinds})" if others else ""


def _history(facts: CardFacts) -> Iterator[CardFacts]:
    """Yield facts and those of the encoders that it was trained from, or averaged of, the latest first."""
    if facts:
        yield facts
        for past in (facts.get("before") or {}, *facts.get("averaged", {}).get("records", ())):
            yield from _history(past)


def _scores(facts: CardFacts) -> str:
    scores: Mapping[str, Mapping[str, float]] = facts["scores"]
    if not scores:
        return ""
    names = list(dict.fromkeys(name for row in scores.values() for name in row))
    head = [_heading(name, facts["about"].get(name)) for name in names]
    lines = [f"| after | {' | '.join(head)} |", "|---|" + "---:|" * len(names)]
    for stage, row in scores.items():
        cells = " | ".join(f"{row[name]:.4f}" if name in row else "–" for name in names)
        lines.append(f"| {'nothing (base)' if stage == 'base' else stage} | {cells} |")
    sections = ["## Scores", "\n".join(lines)]
    base, last = scores.get("base", {}), scores.get(facts["stage"], {})
    worse = [name for name in last if (name == "dev" or name.startswith(GUARD)) and last[name] < base.get(name, -1.0)]
    if worse:
        drops = (f"{name.removeprefix(GUARD)} {base[name]:.4f} → {last[name]:.4f}" for name in worse)
        sections.append(f"Got worse by training: {', '.join(drops)}.")
    for stage, step in facts["kept"].items():
        count = len(facts["curves"][stage])
        sections.append(f"Of stage {stage}, step {step} was kept, the best of {count} evaluations on the dev sets.")
    return "\n\n".join(sections)


def _heading(name: str, about: Mapping[str, str] | None) -> str:
    if about is None:
        return f"{name}, mean" if name in ("dev", "guard") else name
    guard = "guard: " if name.startswith(GUARD) else ""
    return (
        f"{guard}{name.removeprefix(GUARD)} {about['split']} ({about.get('size', 'size unknown')}), {about['metric']}"
    )


def _average(facts: CardFacts) -> str:
    averaged = facts["averaged"]
    lines = ["## Average", "| weight | encoder | SHA-256 of its weights | steps |\n|---:|---|---|---:|"]
    for each, weight in zip(averaged["inputs"], averaged["weights"], strict=True):
        lines[1] += f"\n| {weight:g} | {each['name']} | {each['sha256']} | {each['steps']:,} |"
    count = len(averaged["tried"])
    chosen = f" The weights are the best of {count} by the mean of the dev sets." if count else ""
    lines.append(f"The average ({averaged['method']}) of how these encoders change the weights of the base.{chosen}")
    return "\n\n".join(lines)


def _training(facts: CardFacts, *, again: bool) -> str:
    sections = ["## Training" if not again else "## Training before that"]
    lines = ["| stage | objective | data | split | revision | rows |", "|---|---|---|---|---|---:|"]
    for stage, entries in facts["data"].items():
        for entry in entries:
            name = f"{entry['name']} ({entry['config']})" if "config" in entry else entry["name"]
            revision, objective = entry.get("revision", "–"), facts["objectives"][stage]
            lines.append(f"| {stage} | {objective} | {name} | {entry['split']} | {revision} | {entry['rows']:,} |")
    sections.append("\n".join(lines))
    short = [name for name, dtype in facts.get("arithmetic", {}).items() if dtype == "bfloat16"]
    if short:
        sections.append(f"Matrix products in bfloat16, weights and losses in float32: {', '.join(short)}.")
    overlaps = [
        (stage, entry, name, overlap)
        for stage, entries in facts["data"].items()
        for entry in entries
        for name, overlap in entry.get("overlap", {}).items()
    ]
    if overlaps:
        sections.append("### Texts of the dev and guard sets in the training data")
        sections.append("Compared ignoring case, white space and Unicode form. " + _table_or_none(overlaps))
    sections.append(f"### Recipe\n\n```yaml\n{facts['recipe'].strip()}\n```")
    return "\n\n".join(sections)


def _table_or_none(overlaps: Sequence[tuple[str, Mapping[str, Any], str, Mapping[str, Any]]]) -> str:
    shared = [row for row in overlaps if row[3]["rows"]]
    if not shared:
        return f"None of {', '.join(dict.fromkeys(name for _, _, name, _ in overlaps))} occurs in it."
    lines = [
        "",
        "",
        "| stage | data | set | rows | share | by column | for example |",
        "|---|---|---|---:|---:|---|---|",
    ]
    for stage, entry, name, overlap in shared:
        columns = ", ".join(f"{column} {count:,}" for column, count in overlap["columns"].items() if count)
        cells = (text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;") for text in overlap["examples"])
        examples = "; ".join(f"“{text}”" for text in cells)
        rows, share = f"{overlap['rows']:,} of {entry['rows']:,}", f"{overlap['share']:.2%}"
        lines.append(f"| {stage} | {entry['name']} | {name} | {rows} | {share} | {columns} | {examples} |")
    return "\n".join(lines)
