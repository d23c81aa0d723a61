"""The trainings: networks, mixture, loop, stages."""
