"""A bare PyTorch loop: one loss and one mixer, nothing else

You have a training loop and want to keep it. A complementary loss takes logits and a 0/1 matrix of excluded classes.
ICM mixes each example with one from the same cluster, and the labels of both. The data are handwritten digits with
one complementary label per image, clustered by their raw pixels.
"""

import torch

from complementary import ICM, data, kmeans, labels, losses, oracle, transitions

EPOCHS, BATCH, CLUSTERS = 100, 256, 50

torch.manual_seed(0)
digits = data.load("digits")
assert digits.train.truth is not None
assert digits.test is not None
assert digits.test.truth is not None
x = digits.train.inputs.flatten(1).float() / 255  # [N, D]
x_test = digits.test.inputs.flatten(1).float() / 255
excluded = labels.draw(digits.train.truth, transitions.uniform(10), seed=0)  # 0/1 [N, K]: a 1 means "not this class"
cluster = kmeans(x, CLUSTERS).assignment  # [N]

model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
icm = ICM(alpha=0.4)

for _ in range(EPOCHS):
    for index in torch.randperm(len(x)).split(BATCH):
        mixed, soft = icm(x[index], excluded[index].float(), cluster[index])
        losses_of_batch = losses.s_nl(model(mixed), soft)  # [B]; 0 for an example without a partner in its cluster
        loss = losses_of_batch.sum() / (soft.sum(1) > 0).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

with torch.no_grad():
    accuracy = (model(x_test).argmax(1) == digits.test.truth).float().mean()
noise = oracle.noise_ratio(icm, digits.train.truth, excluded, cluster, BATCH)
print(f"test accuracy {accuracy:.3f}, noise ratio of the mixes {noise:.3f}")

# One "not this" per image is enough for this accuracy on ten classes. Few mixes exclude the class of either image,
# because clusters of digits are nearly pure. `losses.build` binds losses that need a transition matrix or class sizes.
