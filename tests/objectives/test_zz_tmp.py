import torch, copy, pytest
from tests.objectives.test_compression import with_lora
@pytest.mark.parametrize("family", ["llama","llama-tied"])
def test_merge(make_encoder, family):
    enc = make_encoder(family); with_lora(enc, train_embeddings=True)
    with torch.no_grad():
        for n,p in enc.backbone.named_parameters():
            if "modules_to_save" in n: p.add_(0.1*torch.randn_like(p))
    a = enc.encode(["hello there", "fox"])
    enc.merge_adapter()
    b = enc.encode(["hello there", "fox"])
    print(abs(a-b).max(), type(enc.backbone.causal_lm.get_input_embeddings()))
