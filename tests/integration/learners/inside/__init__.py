"""Programs that run in the environment of ``tests.support.learner_env``, where the packages of the learners are."""
