"""Joint AR + block-diffusion training: one forward over a clean and two masked response streams gives a GLM-OCR
checkpoint a drafter, which lives in the shared weights and one embedding row for the mask token (GravityOCR,
arXiv:2609.26638)."""
