"""Looking at the loss as a function on the data space."""

from elliptica.landscape.maximum import MaximumPrinciple as MaximumPrinciple
from elliptica.landscape.maximum import check_maximum_principle as check_maximum_principle
