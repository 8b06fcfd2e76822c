"""Number formats for weights and activations: schemes, overrides, and their assignment to layers."""
