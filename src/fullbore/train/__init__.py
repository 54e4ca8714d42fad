"""What ``fullbore train`` runs: a byte-level language model, trained through a pipeline."""
