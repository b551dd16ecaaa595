"""Qwen2 of transformers taught by a larger one: the frozen teacher under FSDP2, the student under DDP, KL in chunks."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from tock import steps
from transformers import Qwen2Config, Qwen2ForCausalLM

VOCAB, SEQ, BATCH = 32768, 1024, 12
CHUNK, TEMPERATURE, ALPHA = 2048, 2.0, 0.5


def qwen(hidden, intermediate, layers, heads, kv_heads):
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=SEQ,
        use_cache=False,
    )
    with torch.device("cuda"):
        return Qwen2ForCausalLM(config)


def chunk_loss(student, teacher, labels):
    student, teacher = student.float(), teacher.float()
    log_p = F.log_softmax(student / TEMPERATURE, dim=-1)
    log_q = F.log_softmax(teacher / TEMPERATURE, dim=-1)
    kl = F.kl_div(log_p, log_q, reduction="sum", log_target=True) * TEMPERATURE**2
    return ALPHA * kl + (1 - ALPHA) * F.cross_entropy(student, labels, reduction="sum")


def distillation_loss(student, teacher, labels):
    student, teacher, labels = student.flatten(0, 1), teacher.flatten(0, 1), labels.flatten()
    total = 0.0
    for parts in zip(student.split(CHUNK), teacher.split(CHUNK), labels.split(CHUNK)):
        total = total + checkpoint(chunk_loss, *parts, use_reentrant=False)
    return total / labels.numel()


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),))
    torch.manual_seed(0)

    teacher = qwen(2560, 6912, 20, 20, 4).to(torch.bfloat16).requires_grad_(False).eval()
    for layer in teacher.model.layers:
        layer.compile()
        fully_shard(layer, mesh=mesh)
    fully_shard(teacher, mesh=mesh)

    student = qwen(1024, 2816, 12, 16, 4).train()
    for layer in student.model.layers:
        layer.compile()
    student = DistributedDataParallel(student, device_ids=[local_rank], gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(student.parameters(), lr=3e-4, weight_decay=0.1, fused=True)

    torch.manual_seed(1 + dist.get_rank())
    for _ in steps():
        tokens = torch.randint(0, VOCAB, (BATCH, SEQ + 1), device="cuda")
        inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        with torch.no_grad():
            teacher_logits = teacher(input_ids=inputs).logits
        with torch.autocast("cuda", dtype=torch.bfloat16):
            student_logits = student(input_ids=inputs).logits
        loss = distillation_loss(student_logits, teacher_logits, labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()


if __name__ == "__main__":
    main()
