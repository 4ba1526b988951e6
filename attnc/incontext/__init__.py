"""Learning in context: algorithms as attention with fixed weights."""

from attnc.incontext.learner import Learner, gradient_descent
from attnc.incontext.losses import Loss
from attnc.incontext.proof import LearnerCertificate
from attnc.incontext.radius import Radius

__all__ = ["Learner", "LearnerCertificate", "Loss", "Radius", "gradient_descent"]
