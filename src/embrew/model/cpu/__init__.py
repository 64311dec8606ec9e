"""Arithmetic of peft and transformers, faster and in less memory: LoRA, dropout, attention, batches without padding.

Outputs, gradients and the distribution of dropout are those of the libraries, so that the rest of `model` can be read
without these files. It enters them in three places: `adapters` gives LoRA layers the products of `lora_linear`,
`kernels` registers `attention.sdpa` as an attention kernel and, in training, gives layers the norms and feed-forward
parts of `layer_parts`, and `forward.pack` makes a batch one row.

CPU time of a contrastive training step without one of them, in times of the step with all (SmolLM2-135M, bfloat16
autocast, LoRA dropout 0.05, two cores; `benchmarks/results/mechanisms-smollm2.md`):

- `lora_linear`: 1.42
- `dropout`: 1.28
- `attention`, batches without padding: 1.48; with `sdpa`, which they need: 1.86
"""
