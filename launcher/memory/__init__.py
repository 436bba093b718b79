"""What a run takes: device and host memory, NVMe, disk, from the spec and the model's config.json alone. No torch."""
