import torch
from torchao.quantization import quantize_, Int8WeightOnlyConfig, Int8DynamicActivationInt8WeightConfig


class MLP(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            *[m for _ in range(8) for m in (torch.nn.Linear(4096, 4096, bias=False), torch.nn.GELU())]
        )

    def forward(self, x):
        return self.net(x)


model = MLP().to(torch.bfloat16).cuda().eval()
quantize_(model, Int8WeightOnlyConfig())
model = torch.compile(model, mode="max-autotune-no-cudagraphs")
x = torch.randn(16, 4096, dtype=torch.bfloat16, device="cuda")
with torch.inference_mode():
    for _ in range(300):
        y = model(x)
torch.cuda.synchronize()
print(y.float().mean().item())
