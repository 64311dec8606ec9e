"""Object stores (S3, Google Cloud Storage, the Hugging Face Hub), from and to which corpora are encoded."""
