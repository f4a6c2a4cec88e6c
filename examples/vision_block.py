"""A small vision transformer with sparse attention, on scikit-learn's digits."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from hopfy.nn import HopfieldEncoderLayer, HopfieldPooling


class TinyViT(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, kernel_size=2, stride=2)  # 8x8 pixels: 16 patches
        self.position = nn.Parameter(0.02 * torch.randn(16, width))
        self.block = HopfieldEncoderLayer(width, heads, 64, batch_first=True, omega="1.5-entmax")
        self.pool = HopfieldPooling(width, heads, omega="1.5-entmax", normalize=True)
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.block(self.patches(images).flatten(2).mT + self.position)
        pooled, weights = self.pool(x, need_weights=True)
        return self.head(pooled), weights


torch.manual_seed(0)
order = torch.randperm(1797)
images, labels = (torch.tensor(part)[order] for part in load_digits(return_X_y=True))
images = images.float().view(-1, 1, 8, 8) / 16
model = TinyViT()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
for _ in range(8):
    for rows in torch.randperm(1500).split(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[rows])[0], labels[rows]).backward()
        optimizer.step()
logits, weights = model.eval()(images[1500:])
accuracy = (logits.argmax(-1) == labels[1500:]).float().mean().item()
zeros = (weights == 0).float().mean().item()
print(f"accuracy on held-out digits: {accuracy:.1%}; {zeros:.0%} of the patches get no weight")
