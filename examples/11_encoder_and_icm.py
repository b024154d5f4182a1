"""An encoder for better clusters: SimSiam, k-means, ICM

ICM mixes examples of the same cluster. The purer the clusters, the fewer mixes carry a label that is wrong for one of
the two examples. Pretraining an encoder needs the images only. `run` does all three steps and caches the encoder for
the next run.
"""

from complementary import Config, run

base = Config.of(data="digits", clusters=50, epochs=40, pretrain_epochs=30, seed=0)

print("mix    encoder  mixes with a wrong label  test accuracy, epoch selected without true labels")
for mix, encoder in (("mixup", "pixels"), ("icm", "pixels"), ("icm", "simsiam")):
    result = run(base.with_(mix=mix, encoder=encoder))
    print(f"{mix:5}  {encoder:7}  {result['oracle_noise_ratio']:24.3f}  {result['accuracy_selected']:.3f}")

# Mixup pairs any two images, and 19 % of its mixes carry a wrong label. Digits are centered and have no background, so
# raw pixels cluster well. Photographs need the encoder: on CIFAR-10, 17 % of the mixes within clusters of raw pixels
# carry a wrong label, and 4 to 6 % within those of an encoder.
