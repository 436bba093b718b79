"""What a run watches about itself: gradient norms by layer, the loss curve, adapter ranks, memory."""
