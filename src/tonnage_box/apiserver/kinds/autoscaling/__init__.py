"""autoscaling: HorizontalPodAutoscalers in two versions, which the box stores, and Scale.

Called through its rows. Pure.
"""
