"""Schema text: PriorityClasses, PodDisruptionBudgets, evictions (scheduling.k8s.io/v1, policy/v1)."""

TEXT = """\
@scheduling.v1
PriorityClass: How important the pods are that name it.
  apiVersion str: Group and version of the object.
  description str: When to use it, for people.
  globalDefault bool: Whether pods get it that name none; one class at most.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  preemptionPolicy str?: Whether pods of lower priority are pushed out for it: PreemptLowerPriority or Never.
  value! int: The priority; higher goes first.
@policy.v1
Eviction: The wish to remove a pod gently.
  apiVersion str: Group and version of the object.
  deleteOptions DeleteOptions: How to delete.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
PodDisruptionBudget: How many of some pods may be missing at once by the will of somebody.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec PodDisruptionBudgetSpec: What is wanted.
  status PodDisruptionBudgetStatus: What is.
PodDisruptionBudgetSpec: Which pods, and how many of them.
  maxUnavailable intstr?: How many may be missing, as a number or a part in percent; not together with minAvailable.
  minAvailable intstr?: How many must stay, as a number or a part in percent.
  selector LabelSelector: Which pods, by labels; none without it, all if empty.
  unhealthyPodEvictionPolicy str?: Whether pods that are not ready may always go: IfHealthyBudget or AlwaysAllow.
PodDisruptionBudgetStatus: How many may go now.
  conditions [Condition]+type: What holds at present.
  currentHealthy! int: Pods that are ready.
  desiredHealthy! int: Pods that must stay.
  disruptedPods {time}: Pods that were evicted and are not seen to go yet, and when.
  disruptionsAllowed! int: How many more may be evicted now.
  expectedPods! int: Pods that the budget counts.
  observedGeneration long: The generation that this was written for.
Condition: One condition of the budget.
  lastTransitionTime! time: When status changed last.
  message! str: Why, for people.
  observedGeneration long: The generation that this was written for.
  reason! str: Why, in one word for programs.
  status! str: What is.
  type! str: Which sort it is.
"""
