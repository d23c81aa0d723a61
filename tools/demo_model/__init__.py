"""How the bundled demo model in backend/demo/model/ is made: corpus, training, evaluation."""
