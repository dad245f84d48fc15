"""Schema text: Deployments, ReplicaSets, StatefulSets, DaemonSets, ControllerRevisions, Jobs."""

TEXT = """\
@core.v1
PodTemplateSpec: What pods are made from.
  metadata ObjectMeta: Labels and annotations of the pods.
  spec PodSpec: What is wanted.
@autoscaling.v1
Scale: How many pods something has: the same form for everything that can be scaled.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec ScaleSpec: What is wanted.
  status ScaleStatus: What is.
ScaleSpec: How many are wanted.
  replicas int: How many pods.
ScaleStatus: How many there are.
  replicas! int: How many pods.
  selector str: Their labels.
@apps.v1
Deployment: Pods that are all alike, and how a new template replaces the old one.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec DeploymentSpec: What is wanted.
  status DeploymentStatus: What is.
DeploymentSpec: How many pods, of which template.
  minReadySeconds int: Seconds that a pod must be ready to count as available.
  paused bool: Roll nothing out for now.
  progressDeadlineSeconds int?: Seconds without progress after which a rollout counts as failed.
  replicas int?: How many pods.
  revisionHistoryLimit int?: How many old ReplicaSets to retain for rollback.
  selector! LabelSelector: Which objects, by labels.
  strategy DeploymentStrategy~: How old pods are replaced.
  template! PodTemplateSpec: What pods are made from.
DeploymentStrategy: How old pods are replaced by new ones.
  rollingUpdate RollingUpdateDeployment: Bounds of a rolling update.
  type str: Recreate or RollingUpdate.
RollingUpdateDeployment: Bounds of a rolling update.
  maxSurge intstr: How many pods there may be above the wanted number.
  maxUnavailable intstr: How many pods may be missing.
DeploymentStatus: What has become of the Deployment.
  availableReplicas int: Pods that have been ready for long enough.
  collisionCount int?: How often a name was taken.
  conditions [DeploymentCondition]+type: What holds at present.
  observedGeneration long: The generation that this was written for.
  readyReplicas int: Pods that are ready.
  replicas int: How many pods.
  terminatingReplicas int?: Pods that are going.
  unavailableReplicas int: Pods that are still missing.
  updatedReplicas int: Pods of the newest template.
DeploymentCondition: One condition of the Deployment.
  lastTransitionTime time: When status changed last.
  lastUpdateTime time: When it was looked at last.
  message str: Why, for people.
  reason str: Why, in one word for programs.
  status! str: What is.
  type! str: Which sort it is.
ReplicaSet: A number of pods that are all alike.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec ReplicaSetSpec: What is wanted.
  status ReplicaSetStatus: What is.
ReplicaSetSpec: How many pods, of which template.
  minReadySeconds int: Seconds that a pod must be ready to count as available.
  replicas int?: How many pods.
  selector! LabelSelector: Which objects, by labels.
  template PodTemplateSpec: What pods are made from.
ReplicaSetStatus: What has become of the ReplicaSet.
  availableReplicas int: Pods that have been ready for long enough.
  conditions [ReplicaSetCondition]+type: What holds at present.
  fullyLabeledReplicas int: Pods that have all labels of the template.
  observedGeneration long: The generation that this was written for.
  readyReplicas int: Pods that are ready.
  replicas! int: How many pods.
  terminatingReplicas int?: Pods that are going.
ReplicaSetCondition: One condition of the ReplicaSet.
  lastTransitionTime time: When status changed last.
  message str: Why, for people.
  reason str: Why, in one word for programs.
  status! str: What is.
  type! str: Which sort it is.
StatefulSet: Pods with numbers, each with claims of its own.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec StatefulSetSpec: What is wanted.
  status StatefulSetStatus: What is.
StatefulSetSpec: How many pods, of which template, with which claims.
  minReadySeconds int: Seconds that a pod must be ready to count as available.
  ordinals StatefulSetOrdinals: How pods are numbered.
  persistentVolumeClaimRetentionPolicy StatefulSetPersistentVolumeClaimRetentionPolicy: What becomes of claims.
  podManagementPolicy str: OrderedReady (one after another) or Parallel.
  replicas int?: How many pods.
  revisionHistoryLimit int?: How many old templates to retain for rollback.
  selector! LabelSelector: Which objects, by labels.
  serviceName str: The Service whose domain its pods have.
  template! PodTemplateSpec: What pods are made from.
  updateStrategy StatefulSetUpdateStrategy: How old pods are replaced.
  volumeClaimTemplates [PersistentVolumeClaim]: Claims that each number has.
StatefulSetOrdinals: How pods are numbered.
  start int: The first number.
StatefulSetPersistentVolumeClaimRetentionPolicy: Retain or Delete.
  whenDeleted str: What becomes of claims when the StatefulSet is deleted.
  whenScaled str: What becomes of the claims of pods that are no longer wanted.
StatefulSetUpdateStrategy: How old pods are replaced by new ones.
  rollingUpdate RollingUpdateStatefulSetStrategy: Bounds of a rolling update.
  type str: RollingUpdate or OnDelete.
RollingUpdateStatefulSetStrategy: Bounds of a rolling update.
  maxUnavailable intstr: How many pods may be missing.
  partition int?: Pods with lower numbers stay as they are.
StatefulSetStatus: What has become of the StatefulSet.
  availableReplicas int: Pods that have been ready for long enough.
  collisionCount int?: How often a name was taken.
  conditions [StatefulSetCondition]+type: What holds at present.
  currentReplicas int: Pods of the current revision.
  currentRevision str: The revision that pods had before the update.
  observedGeneration long: The generation that this was written for.
  readyReplicas int: Pods that are ready.
  replicas! int: How many pods.
  updateRevision str: The revision that pods are to have.
  updatedReplicas int: Pods of the newest template.
StatefulSetCondition: One condition of the StatefulSet.
  lastTransitionTime time: When status changed last.
  message str: Why, for people.
  reason str: Why, in one word for programs.
  status! str: What is.
  type! str: Which sort it is.
DaemonSet: A pod on every node that suits.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec DaemonSetSpec: What is wanted.
  status DaemonSetStatus: What is.
DaemonSetSpec: Which pod.
  minReadySeconds int: Seconds that a pod must be ready to count as available.
  revisionHistoryLimit int?: How many old templates to retain for rollback.
  selector! LabelSelector: Which objects, by labels.
  template! PodTemplateSpec: What pods are made from.
  updateStrategy DaemonSetUpdateStrategy: How old pods are replaced.
DaemonSetUpdateStrategy: How old pods are replaced by new ones.
  rollingUpdate RollingUpdateDaemonSet: Bounds of a rolling update.
  type str: RollingUpdate or OnDelete.
RollingUpdateDaemonSet: Bounds of a rolling update.
  maxSurge intstr: On how many nodes there may be two pods.
  maxUnavailable intstr: On how many nodes the pod may be missing.
DaemonSetStatus: What has become of the DaemonSet.
  collisionCount int?: How often a name was taken.
  conditions [DaemonSetCondition]+type: What holds at present.
  currentNumberScheduled! int: Nodes that suit and have a pod.
  desiredNumberScheduled! int: Nodes that suit.
  numberAvailable int: Nodes whose pod has been ready for long enough.
  numberMisscheduled! int: Nodes that do not suit and have a pod.
  numberReady! int: Nodes whose pod is ready.
  numberUnavailable int: Nodes whose pod is missing or not ready.
  observedGeneration long: The generation that this was written for.
  updatedNumberScheduled int: Nodes with a pod of the newest template.
DaemonSetCondition: One condition of the DaemonSet.
  lastTransitionTime time: When status changed last.
  message str: Why, for people.
  reason str: Why, in one word for programs.
  status! str: What is.
  type! str: Which sort it is.
ControllerRevision: A template that a StatefulSet or DaemonSet has had.
  apiVersion str: Group and version of the object.
  data any: The template, as a patch.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  revision! long: Its number; higher is newer.
@batch.v1
Job: Pods that are to end well.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec JobSpec: What is wanted.
  status JobStatus: What is.
JobSpec: How many pods must end well, and what happens when they do not.
  activeDeadlineSeconds long?: Seconds after which the Job has failed.
  backoffLimit int?: How many pods may fail.
  backoffLimitPerIndex int?: How many pods of one index may fail.
  completionMode str?: NonIndexed, or Indexed (each pod has a number).
  completions int?: How many pods must end well.
  managedBy str?: Who manages it.
  manualSelector bool?: Whether selector is made by hand.
  maxFailedIndexes int?: How many indexes may fail.
  parallelism int?: How many pods run at a time.
  podFailurePolicy any: What follows from which failure.
  podReplacementPolicy str?: When a pod is replaced: TerminatingOrFailed, Failed.
  selector LabelSelector: Which objects, by labels.
  successPolicy any: When the Job has succeeded before all indexes have.
  suspend bool?: Run no pods for now.
  template! PodTemplateSpec: What pods are made from.
  ttlSecondsAfterFinished int?: Seconds after its end when it is deleted.
JobStatus: What has become of the Job.
  active int: Pods that run or wait.
  completedIndexes str: Numbers that have ended well, as 1,3-5.
  completionTime time: When it had succeeded.
  conditions [JobCondition]+type: What holds at present.
  failed int: Pods that have failed.
  failedIndexes str?: Numbers that have failed.
  ready int?: Pods that are ready.
  startTime time: When it began.
  succeeded int: Pods that have ended well.
  terminating int?: Pods that are going.
  uncountedTerminatedPods UncountedTerminatedPods: Pods that have ended and are yet to be counted.
JobCondition: One condition of the Job.
  lastProbeTime time: When it was looked at last.
  lastTransitionTime time: When status changed last.
  message str: Why, for people.
  reason str: Why, in one word for programs.
  status! str: What is.
  type! str: Which sort it is.
CronJob: Jobs that are made again and again.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec CronJobSpec: What is wanted.
  status CronJobStatus: What is.
CronJobSpec: When Jobs are made, and which.
  concurrencyPolicy str: While the last one runs: Allow, Forbid, Replace.
  failedJobsHistoryLimit int?: How many failed Jobs to retain.
  jobTemplate! JobTemplateSpec: What Jobs are made from.
  schedule! str: When, as in crontab: minute hour day month weekday.
  startingDeadlineSeconds long?: Seconds after which a missed time is left out.
  successfulJobsHistoryLimit int?: How many successful Jobs to retain.
  suspend bool?: Make no Jobs for now.
  timeZone str?: Where schedule is meant; UTC without.
JobTemplateSpec: What Jobs are made from.
  metadata ObjectMeta: Labels and annotations of the Jobs.
  spec JobSpec: What is wanted.
CronJobStatus: What has become of the CronJob.
  active [ObjectReference]: Jobs that run.
  lastScheduleTime time: When the last Job was due.
  lastSuccessfulTime time: When a Job ended well last.
UncountedTerminatedPods: Pods that have ended and are yet to be counted.
  failed [str]+: uids of failed ones.
  succeeded [str]+: uids of those that ended well.
"""
