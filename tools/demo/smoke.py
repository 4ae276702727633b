"""First minutes of a lease: every kernel against plain torch, the packed bf16 forward against fp32 on the CPU, and the speed of
the teacher's step (on random weights: its file may not have arrived yet)."""

import time

import torch

import decode_kernels
import model as demo
import teacher
from parameters import Parameters
from refill import RefillLoop


def decode_check():
    torch.manual_seed(0)
    rows, length = 64, 200
    q, k, v = (torch.randn(rows, n, 64, device="cuda", dtype=torch.bfloat16) for n in (9, 3, 3))
    caches = [torch.randn(rows, 3, length, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    positions = torch.randint(0, length, (rows,), device="cuda").int()
    mine = decode_kernels.attention(q, k, v, *caches, positions)
    truth = decode_kernels.attention_in_torch(*(x.float().cpu() for x in (q, k, v, *caches)), positions.cpu())
    print(f"decode attention {((mine.float().cpu() - truth).norm() / truth.norm()).item():.2e}")
    logits = torch.randn(4096, 5000, device="cuda", dtype=torch.bfloat16) * 2
    logits[:] = logits[0]
    counter = torch.zeros(1, dtype=torch.int32, device="cuda")
    drawn = decode_kernels.draw(logits, torch.ones(4096, device="cuda"), counter, -100.0)
    share = logits[0].float().softmax(0)
    top = share.topk(5)
    print("draw: expected", [f"{x:.3f}" for x in top.values.tolist()], "seen", [f"{(drawn == i).float().mean().item():.3f}" for i in top.indices.tolist()])
    zero = decode_kernels.draw(logits, torch.zeros(4096, device="cuda"), counter, -100.0)
    assert bool((logits[0].float()[zero.long()] == logits[0].float().max()).all())


def model_check():
    from check_model import scattered
    import numpy as np
    config = demo.Config(vocabulary=1024)
    parameters = Parameters(scattered(demo.specification(config)), "cuda")
    parameters.refresh()
    starts = np.zeros((4, 256), dtype=bool)
    starts[:, 0] = starts[:, 100] = starts[:, 180] = True
    tokens = torch.randint(0, 1024, (4, 256))
    with torch.no_grad():
        model = demo.Model(config, parameters.leaves())
        batch = demo.Batch(tokens.cuda(), starts)
        mine = model.trunk(batch)[0].float().cpu()
        values = [x.float() for x in (torch.randn(4, 256, 6, 64, device="cuda") for _ in range(3))]
        half = [x.bfloat16() for x in values]
        flash = batch.attend(*half).float()
        mask = batch.causal_mask()
        slow = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in values), attn_mask=mask).transpose(1, 2)
        print(f"flash by documents {((flash - slow).norm() / slow.norm()).item():.2e}")
    print(f"packed forward, bf16, finite: {bool(mine.isfinite().all())}, rms {mine.square().mean().sqrt().item():.3f}")


def teacher_speed():
    shapes = {"attn_q": (576, 576), "attn_k": (192, 576), "attn_v": (192, 576), "attn_output": (576, 576), "ffn_gate": (1536, 576),
              "ffn_up": (1536, 576), "ffn_down": (576, 1536), "attn_norm": (576,), "ffn_norm": (576,)}
    weights = {f"blk.{i}.{n}.weight": torch.randn(s, device="cuda", dtype=torch.bfloat16) * 0.02 for i in range(30) for n, s in shapes.items()}
    weights |= {"token_embd.weight": torch.randn(49152, 576, device="cuda", dtype=torch.bfloat16) * 0.02, "output_norm.weight": torch.ones(576, device="cuda", dtype=torch.bfloat16)}
    with torch.no_grad():
        rows = 4096
        writer = teacher.Teacher(weights, rows, 320)
        table = teacher.pack([[1, 2, 3, 4]] * 20000, [0.6] * 20000, "cuda")
        loop = RefillLoop(writer.step, rows, *table, [60000], 320, 0.08)
        began = time.time()
        steps = loop.run(4)
        print(f"teacher: {steps * rows / 4:.0f} rows/s in the first {steps} steps, whole call {time.time() - began:.1f} s, {torch.cuda.max_memory_allocated() / 1e9:.0f} GB")


def main():
    for check in (decode_check, model_check, teacher_speed):
        began = time.time()
        check()
        print(f"{check.__name__}: {time.time() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
