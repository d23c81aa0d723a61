"""The second network of Refrain's verifier, in the folder `model`. See README.md."""
