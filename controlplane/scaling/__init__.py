"""ScalingPolicy, Override, ScalingDecision, ColdStart — asking for more or fewer replicas."""
