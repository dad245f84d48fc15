"""Containers: what they run, and their state."""

TEXT = """\
@core.v1
Container: One program of a pod.
  args [str]: Arguments, instead of the image's.
  command [str]: Program and arguments, instead of the image's.
  env [EnvVar]+name: Environment variables.
  envFrom [EnvFromSource]: Sources of many environment variables.
  image str: Name of the image.
  imagePullPolicy str: When to fetch the image: Always, IfNotPresent, Never.
  lifecycle Lifecycle: What is done after start and before stop.
  livenessProbe Probe: When this fails the container is started again.
  name! str: Name, unique in the pod; a DNS label.
  ports [ContainerPort]+containerPort: Ports that are listened on.
  readinessProbe Probe: While this fails the container is not ready.
  resizePolicy [ContainerResizePolicy]
  resources ResourceRequirements: Resources that are asked for.
  restartPolicy str?: When containers are started again: Always, OnFailure, Never.
  restartPolicyRules [ContainerRestartRule]
  securityContext SecurityContext: As whom and with which rights it runs.
  startupProbe Probe: Until this succeeds the other probes wait.
  stdin bool: Whether input stays open.
  stdinOnce bool: Whether input is closed after the first client.
  terminationMessagePath str: File that says why it ended.
  terminationMessagePolicy str: File, or FallbackToLogsOnError.
  tty bool: Whether it gets a terminal.
  volumeDevices [VolumeDevice]+devicePath: Where the container sees raw block volumes.
  volumeMounts [VolumeMount]+mountPath: Where the container sees volumes.
  workingDir str: Directory to start in.
EnvVar: An environment variable.
  name! str: Name.
  value str: Value.
  valueFrom EnvVarSource
EnvVarSource: Where the value of a variable comes from.
  configMapKeyRef ConfigMapKeySelector
  fieldRef ObjectFieldSelector
  fileKeyRef FileKeySelector
  resourceFieldRef ResourceFieldSelector
  secretKeyRef SecretKeySelector
ConfigMapKeySelector
  key! str: Key.
  name str: Name.
  optional bool?: Whether it may be missing.
ObjectFieldSelector
  apiVersion str: Group and version of the object.
  fieldPath! str
FileKeySelector
  key! str: Key.
  optional bool?: Whether it may be missing.
  path! str: Path.
  volumeName! str: Name of the PersistentVolume.
ResourceFieldSelector
  containerName str
  divisor quantity
  resource! str
SecretKeySelector
  key! str: Key.
  name str: Name.
  optional bool?: Whether it may be missing.
EnvFromSource
  configMapRef ConfigMapEnvSource
  prefix str
  secretRef SecretEnvSource: The Secret that holds credentials.
ConfigMapEnvSource
  name str: Name.
  optional bool?: Whether it may be missing.
SecretEnvSource
  name str: Name.
  optional bool?: Whether it may be missing.
Lifecycle: What is done after a container's start and before its stop.
  postStart LifecycleHandler
  preStop LifecycleHandler
  stopSignal str?
LifecycleHandler
  exec ExecAction: A command that must succeed.
  httpGet HTTPGetAction: A request that must succeed.
  sleep SleepAction
  tcpSocket TCPSocketAction: A connection that must succeed.
ExecAction
  command [str]: Program and arguments, instead of the image's.
HTTPGetAction
  host str
  httpHeaders [HTTPHeader]
  path str: Path.
  port! intstr
  scheme str
HTTPHeader
  name! str: Name.
  value! str: Value.
SleepAction
  seconds! long
TCPSocketAction
  host str
  port! intstr
Probe: A check of a container, repeated.
  exec ExecAction: A command that must succeed.
  failureThreshold int: Failures in a row that count.
  grpc GRPCAction: A health call that must succeed.
  httpGet HTTPGetAction: A request that must succeed.
  initialDelaySeconds int: Seconds before the first check.
  periodSeconds int: Seconds between checks.
  successThreshold int: Successes in a row that count.
  tcpSocket TCPSocketAction: A connection that must succeed.
  terminationGracePeriodSeconds long?: Seconds between the polite and the hard end.
  timeoutSeconds int: Seconds a check may take.
GRPCAction
  port! int
  service str?
ContainerPort: A port that a container listens on.
  containerPort! int: Port number inside.
  hostIP str: Address of its node.
  hostPort int: Port number on the node.
  name str: Name.
  protocol str: TCP, UDP or SCTP.
ContainerResizePolicy
  resourceName! str
  restartPolicy! str: When containers are started again: Always, OnFailure, Never.
ResourceRequirements: Compute resources that are asked for, and their bounds.
  claims [ResourceClaim]
  limits {quantity}: What may be used at most, by resource.
  requests {quantity}: What is asked for, by resource.
ResourceClaim
  name! str: Name.
  request str
ContainerRestartRule
  action! str: What was done.
  exitCodes ContainerRestartRuleOnExitCodes
ContainerRestartRuleOnExitCodes
  operator! str: How key and values relate.
  values [int]: Values.
SecurityContext: As whom and with which rights a container runs.
  allowPrivilegeEscalation bool?: Whether a process may gain more rights than its parent.
  appArmorProfile AppArmorProfile
  capabilities Capabilities: Linux capabilities to add and drop.
  privileged bool?: Run with all rights on the node.
  procMount str?
  readOnlyRootFilesystem bool?: Make the root read-only.
  runAsGroup long?: Group id.
  runAsNonRoot bool?: Refuse to run as root.
  runAsUser long?: User id.
  seLinuxOptions SELinuxOptions
  seccompProfile SeccompProfile
  windowsOptions WindowsSecurityContextOptions
AppArmorProfile
  localhostProfile str?
  type! str: Which sort it is.
Capabilities
  add [str]
  drop [str]
SELinuxOptions
  level str
  role str
  type str: Which sort it is.
  user str
SeccompProfile
  localhostProfile str?
  type! str: Which sort it is.
WindowsSecurityContextOptions
  gmsaCredentialSpec str?
  gmsaCredentialSpecName str?
  hostProcess bool?
  runAsUserName str?
VolumeDevice: Where a container sees a raw block volume.
  devicePath! str: Device file inside the container.
  name! str: Name of the pod's volume.
VolumeMount: Where a container sees a volume.
  mountPath! str: Directory inside the container.
  mountPropagation str?: Whether mounts made later are seen on the other side.
  name! str: Name of the pod's volume.
  readOnly bool: Mount it read-only.
  recursiveReadOnly str?
  subPath str: Part of the volume to mount.
  subPathExpr str: Part of the volume to mount, with variables.
EphemeralContainer: A container added to a running pod to look into it.
  args [str]: Arguments, instead of the image's.
  command [str]: Program and arguments, instead of the image's.
  env [EnvVar]+name: Environment variables.
  envFrom [EnvFromSource]: Sources of many environment variables.
  image str: Name of the image.
  imagePullPolicy str: When to fetch the image: Always, IfNotPresent, Never.
  lifecycle Lifecycle: What is done after start and before stop.
  livenessProbe Probe: When this fails the container is started again.
  name! str: Name.
  ports [ContainerPort]+containerPort: Ports that are listened on.
  readinessProbe Probe: While this fails the container is not ready.
  resizePolicy [ContainerResizePolicy]
  resources ResourceRequirements: Resources that are asked for.
  restartPolicy str: When containers are started again: Always, OnFailure, Never.
  restartPolicyRules [ContainerRestartRule]
  securityContext SecurityContext: As whom and with which rights it runs.
  startupProbe Probe: Until this succeeds the other probes wait.
  stdin bool: Whether input stays open.
  stdinOnce bool: Whether input is closed after the first client.
  targetContainerName str
  terminationMessagePath str: File that says why it ended.
  terminationMessagePolicy str: File, or FallbackToLogsOnError.
  tty bool: Whether it gets a terminal.
  volumeDevices [VolumeDevice]+devicePath: Where the container sees raw block volumes.
  volumeMounts [VolumeMount]+mountPath: Where the container sees volumes.
  workingDir str: Directory to start in.
ContainerStatus: The state of a container.
  allocatedResources {quantity}: Resources set aside for it.
  allocatedResourcesStatus [ResourceStatus]+name
  containerID str
  image! str: Name of the image.
  imageID! str
  lastState ContainerState: How it ended last.
  name! str: Name.
  ready! bool: Whether it is ready.
  resources ResourceRequirements: Resources that are asked for.
  restartCount! int: How often it was started again.
  started bool?
  state ContainerState: What it is doing.
  stopSignal str?
  user ContainerUser
  volumeMounts [VolumeMountStatus]+mountPath: Where the container sees volumes.
ResourceStatus
  name! str: Name.
  resources [ResourceHealth]: Resources that are asked for.
ResourceHealth
  health str
  resourceID! str
ContainerState: What a container is doing: one of waiting, running, terminated.
  running ContainerStateRunning: It runs.
  terminated ContainerStateTerminated: It has ended.
  waiting ContainerStateWaiting: It does not run yet.
ContainerStateRunning
  startedAt time: When it began.
ContainerStateTerminated
  containerID str
  exitCode! int: Its exit code.
  finishedAt time: When it ended.
  message str: Why, for people.
  reason str: Why, in one word for programs.
  signal int: The signal that ended it.
  startedAt time: When it began.
ContainerStateWaiting
  message str: Why, for people.
  reason str: Why, in one word for programs.
ContainerUser
  linux LinuxContainerUser
LinuxContainerUser
  gid! long
  supplementalGroups [long]: Further group ids.
  uid! long: Identity, unique in space and time.
VolumeMountStatus
  mountPath! str: Directory inside the container.
  name! str: Name.
  readOnly bool: Mount it read-only.
  recursiveReadOnly str?
"""
