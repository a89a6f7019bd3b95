"""Models: objectives (model + loss + federation) that compute losses, gradients and local training,
stacked.
"""
