"""The bundled demo model: corpus, training, evaluation, weights."""
