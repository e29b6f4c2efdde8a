//! What bursts are about. Each is a story that once went wrong somewhere, or could; the faults make it so.

use super::PlanGenerator;
use crate::observation::{ObjectId, Selection};
use crate::plan::names::{label_name, object_name, role_name};
use crate::plan::{
    CrashPoint, HostileAct, InjectedFault, LinkDirection, ObjectContent, PlanOperation, PlannedReference,
};

/// What a burst is about, at a node.
type Story<'s> = fn(&mut PlanGenerator<'s>, &str);

impl<'s> PlanGenerator<'s> {
    /// One burst, with its faults.
    pub(super) fn burst(&mut self) {
        let stories: [(u64, Story<'s>); 16] = [
            (12, Self::pod_changes),
            (12, Self::handover),
            (10, Self::failover),
            (6, Self::pod_moves),
            (8, Self::away),
            (8, Self::disk_trouble),
            (6, Self::restore),
            (8, Self::unreadable),
            (8, Self::followed),
            (8, Self::reports),
            (4, Self::two_identities),
            (3, Self::hostile),
            (3, Self::trimming),
            (4, Self::node_object),
            (if self.size.grids { 6 } else { 1 }, Self::grids),
            (if self.size.large { 4 } else { 1 }, Self::flood),
        ];
        let node = self.any_node();
        self.random.weighted(&stories)(self, &node);
        self.some_faults(&node);
    }

    /// A pod and what it refers to change, go and come back.
    fn pod_changes(&mut self, node: &str) {
        let (pod, references) = self.pod_with_references(node, 0);
        for _ in 0..self.random.between(2, 6) {
            let reference = self.random.pick(&references).clone();
            let object = Self::referred(&pod.namespace, &reference);
            if !crate::oracle::content::is_name(&object.name) {
                continue;
            }
            let (moment, content) = (self.moment(), self.content());
            let operation = match self.random.below(6) {
                0..=2 => PlanOperation::Put { object, content },
                3 => PlanOperation::Touch { object },
                4 => PlanOperation::Delete { object, grace_seconds: 0 },
                _ => PlanOperation::Recreate { object, content },
            };
            self.do_at(moment, operation);
        }
        let moment = self.moment();
        match self.random.below(3) {
            0 => self.do_at(moment, PlanOperation::Touch { object: pod }),
            1 => {
                self.do_at(moment, PlanOperation::Delete { object: pod.clone(), grace_seconds: 2 });
                self.do_at(moment + 2_000, PlanOperation::Terminated { node: node.to_owned(), object: pod });
            }
            _ => self.put_pod(moment, pod, node, references),
        }
    }

    /// One pod goes and another one that needs the same objects comes, while a replica sees only one of both.
    fn handover(&mut self, node: &str) {
        let (old, references) = self.pod_with_references(node, 0);
        let new = ObjectId::new("pods", &old.namespace, &object_name(&mut self.random));
        let (replica, resource) = (self.any_replica(), "pods".to_owned());
        let lag = self.duration();
        let moment = self.random.between(500, 2_000);
        if self.random.percent(70) {
            let lag_from = moment + self.random.below(400);
            self.fault_at(lag_from, lag, InjectedFault::WatchLag { replica, resource });
        }
        let (first, second) = if self.random.percent(50) { (0, 200) } else { (200, 0) };
        self.do_at(moment + first, PlanOperation::Delete { object: old, grace_seconds: 0 });
        self.put_pod(moment + second, new, node, references);
        if self.random.percent(60) {
            let after = moment + self.random.between(300, 2_000);
            self.fault_at(after, 0, InjectedFault::SwitchReplica { node: node.to_owned(), replica });
        }
    }

    /// A node moves to a replica whose view of one kind is old.
    fn failover(&mut self, node: &str) {
        let other = self.any_replica();
        let resource = (*self.random.pick(&["pods", "configmaps", "secrets"])).to_owned();
        let lasts = self.random.between(3_000, 60_000);
        self.fault_at(0, lasts, InjectedFault::WatchLag { replica: other, resource });
        let (pod, references) = self.pod_with_references(node, 200);
        for reference in references {
            let object = Self::referred(&pod.namespace, &reference);
            if crate::oracle::content::is_name(&object.name) {
                let content = self.content();
                let moment = self.random.between(600, 1_500);
                self.do_at(moment, PlanOperation::Put { object, content });
            }
        }
        let moment = self.random.between(1_500, 2_500);
        self.fault_at(moment, 0, InjectedFault::SwitchReplica { node: node.to_owned(), replica: other });
        if self.random.percent(40) {
            let replica = self.any_replica();
            let point = self.crash_point();
            self.fault_at(moment + 100, 10_000, InjectedFault::CrashReplica { replica, point });
        }
    }

    /// A pod ends on one node and comes back under its name on another.
    fn pod_moves(&mut self, node: &str) {
        let pod = self.pod_of(node);
        let (other, moment) = (self.any_node(), self.moment());
        let references = self.references(&pod.namespace, 0);
        self.do_at(100, PlanOperation::Touch { object: pod.clone() });
        self.put_pod(moment, pod.clone(), &other, references.clone());
        if self.random.percent(50) {
            self.put_pod(moment + 500, pod, node, references);
        }
    }

    /// A node is away while its objects change and its pods report.
    fn away(&mut self, node: &str) {
        let (pod, _) = self.pod_with_references(node, 0);
        let lasts = self.random.between(5_000, 300_000);
        let direction = if self.random.percent(70) { LinkDirection::Both } else { self.direction() };
        self.fault_at(1_500, lasts, InjectedFault::Cut { node: node.to_owned(), direction });
        for number in 0..self.random.between(1, 4) {
            self.report(node, &pod, 2_000 + number * 300);
        }
        self.pod_changes(node);
        if self.random.percent(40) {
            let point = self.crash_point();
            self.fault_at(3_500, 2_000, InjectedFault::CrashAgent { node: node.to_owned(), point });
        }
        if self.random.percent(40) {
            self.do_at(4_000, PlanOperation::Delete { object: pod, grace_seconds: 0 });
        }
    }

    /// The disk of a node fails while its objects change.
    fn disk_trouble(&mut self, node: &str) {
        let (fault, lasts) = (self.disk_fault(), self.random.between(500, 20_000));
        let name = node.to_owned();
        self.fault_at(300, lasts, InjectedFault::Disk { node: name.clone(), fault });
        self.pod_changes(node);
        let point = self.crash_point();
        let moment = self.moment();
        match self.random.below(4) {
            0..=1 => self.fault_at(moment, 1_500, InjectedFault::PowerCut { node: name, point }),
            2 => self.fault_at(moment, 1_500, InjectedFault::CrashAgent { node: name, point }),
            _ if self.random.percent(30) => {
                self.fault_at(moment, 0, InjectedFault::ReplaceDisk { node: name });
            }
            _ => {}
        }
    }

    /// The API server goes back to a backup.
    fn restore(&mut self, node: &str) {
        let back = self.random.between(500, 8_000);
        let moment = self.random.between(2_000, 6_000);
        let taken_at = (self.now + moment).saturating_sub(back);
        self.pod_changes(node);
        self.fault_at(moment, 0, InjectedFault::RestoreBackup { taken_at });
        if self.random.percent(50) {
            let (replica, point) = (self.any_replica(), CrashPoint::Now);
            let before = self.random.below(2_000);
            self.fault_at(
                moment.saturating_sub(before),
                4_000,
                InjectedFault::CrashReplica { replica, point },
            );
        }
        if self.random.percent(50) {
            self.now += moment;
            self.pod_changes(node);
        }
    }

    /// What a new pod refers to cannot be read for a while.
    fn unreadable(&mut self, node: &str) {
        let resource = (*self.random.pick(&["configmaps", "secrets", "pods"])).to_owned();
        let verb = (*self.random.pick(&["get", "get", "list"])).to_owned();
        let lasts = match self.random.below(3) {
            0 => self.random.between(300_000, 600_000),
            _ => self.random.between(1_000, 60_000),
        };
        let kind = resource.clone();
        let fault = match self.random.below(4) {
            0 => InjectedFault::ApiTimeout { resource, verb },
            _ => {
                let code = self.failure_of(&verb);
                InjectedFault::ApiFailure { resource, verb, code }
            }
        };
        self.fault_at(0, lasts, fault);
        if self.random.percent(50) {
            self.pod_with_many_references(node, &kind);
        }
        self.pod_changes(node);
        // Others must not wait for this node.
        let other = self.any_node();
        self.pod_with_references(&other, 3_000);
        let name = node.to_owned();
        if self.random.percent(40) {
            self.fault_at(2_000, 0, InjectedFault::Reset { node: name });
        } else if self.random.percent(20) {
            self.fault_at(2_000, 0, InjectedFault::ReplaceDisk { node: name });
        }
    }

    /// More references of one kind than an API server is asked about at a time.
    fn pod_with_many_references(&mut self, node: &str, kind: &str) {
        let namespace = self.any_namespace();
        let mut references = Vec::new();
        for number in 0..self.random.between(8, 40) {
            let name = format!("many-{number}");
            let reference = match kind {
                "configmaps" => PlannedReference::ConfigVolume(name),
                _ => PlannedReference::SecretVolume(name),
            };
            references.push(reference);
        }
        self.put_pod(400, ObjectId::new("pods", &namespace, "many"), node, references);
    }

    /// Local clients follow selections whose objects and rights change.
    fn followed(&mut self, node: &str) {
        let namespace = self.any_namespace();
        let resource =
            *self.random.pick(&["services", "endpointslices.discovery.k8s.io", "configmaps", "nodes"]);
        let labels = if self.random.percent(40) { "app=web".to_owned() } else { String::new() };
        let client = format!("client-{}", self.random.below(3));
        let is_cluster = resource == "nodes";
        let selection = Selection {
            resource: resource.to_owned(),
            namespace: if is_cluster || self.random.percent(50) { String::new() } else { namespace.clone() },
            labels,
            fields: String::new(),
        };
        let account = if self.random.percent(30) { format!("{namespace}/robot") } else { String::new() };
        self.rights(&namespace, resource, &account);
        let key = (client.clone(), node.to_owned());
        let name = node.to_owned();
        let follow = PlanOperation::Follow { node: name.clone(), client: client.clone(), selection, account };
        self.do_at(300, follow);
        for _ in 0..self.random.between(2, 5) {
            let object = match resource {
                "nodes" => ObjectId::node(&self.any_node()),
                "configmaps" => ObjectId::new(resource, &namespace, &object_name(&mut self.random)),
                _ => ObjectId::new(resource, &namespace, &label_name(&mut self.random)),
            };
            let app = if self.random.percent(70) { "web" } else { "other" };
            let (moment, mut content) = (self.moment(), self.labelled(app));
            if resource.starts_with("endpointslices") {
                content.node = name.clone();
            }
            let operation = match self.random.below(6) {
                _ if is_cluster => PlanOperation::Touch { object },
                0..=2 => PlanOperation::Put { object, content },
                3 => PlanOperation::Touch { object },
                4 => PlanOperation::Delete { object, grace_seconds: 0 },
                _ => PlanOperation::Recreate { object, content },
            };
            self.do_at(moment, operation);
        }
        let of_kind = resource.to_owned();
        if self.random.percent(50) {
            let (replica, lasts) = (self.any_replica(), self.duration());
            self.fault_at(1_000, lasts, InjectedFault::WatchLag { replica, resource: of_kind });
        }
        self.clients.push(key);
        if self.random.percent(30) {
            let (client, node) = self.random.pick(&self.clients.clone()).clone();
            self.do_at(5_000, PlanOperation::Unfollow { node, client });
        }
    }

    /// Rights of a kind, granted and sometimes taken again.
    fn rights(&mut self, namespace: &str, resource: &str, account: &str) {
        let role = ObjectId::new("clusterroles.rbac.authorization.k8s.io", "", &role_name(&mut self.random));
        let rules = vec![format!("get,list,watch {resource}")];
        self.do_at(
            0,
            PlanOperation::Put {
                object: role.clone(),
                content: ObjectContent { rules, ..Default::default() },
            },
        );
        let subject = match account {
            "" => "Group/tombolo:edge-nodes".to_owned(),
            account => format!("ServiceAccount/{account}"),
        };
        if !account.is_empty() {
            let object = ObjectId::new("serviceaccounts", namespace, "robot");
            self.do_at(0, PlanOperation::Put { object, content: ObjectContent::default() });
        }
        let (kind, of) = if self.random.percent(70) {
            ("clusterrolebindings.rbac.authorization.k8s.io", "")
        } else {
            ("rolebindings.rbac.authorization.k8s.io", namespace)
        };
        let binding = ObjectId::new(kind, of, &role.name);
        let content = ObjectContent {
            role: format!("ClusterRole/{}", role.name),
            subjects: vec![subject],
            ..Default::default()
        };
        self.do_at(50, PlanOperation::Put { object: binding.clone(), content });
        if self.random.percent(40) {
            let moment = self.moment();
            let object = if self.random.percent(50) { binding } else { role };
            self.do_at(moment, PlanOperation::Delete { object, grace_seconds: 0 });
        }
    }

    /// A node reports while its link, its replica and the API server fail.
    fn reports(&mut self, node: &str) {
        let pod = self.pod_of(node);
        let lease = ObjectId::new("leases.coordination.k8s.io", "kube-node-lease", node);
        let own = ObjectId::node(node);
        let count = self.random.between(3, 9);
        for number in 0..count {
            let event = ObjectId::new("events", &pod.namespace, &format!("event-{}", self.contents));
            let object =
                self.random.pick(&[pod.clone(), pod.clone(), own.clone(), event, lease.clone()]).clone();
            let moment = number * 500 + self.random.below(400);
            self.report(node, &object, moment);
        }
        let name = node.to_owned();
        let (lasts, moment) = (self.random.between(500, 8_000), self.moment());
        let (resource, verb) =
            ((*self.random.pick(&["pods", "nodes", "events"])).to_owned(), "patch".to_owned());
        match self.random.below(4) {
            0 => self.fault_at(moment, lasts, InjectedFault::ApiTimeout { resource, verb }),
            1 => self.fault_at(moment, lasts, InjectedFault::ApiFailure { resource, verb, code: 409 }),
            2 => self.fault_at(moment, lasts, InjectedFault::WebhookHang { resource }),
            _ => self.fault_at(
                moment,
                lasts,
                InjectedFault::Cut { node: name.clone(), direction: LinkDirection::Up },
            ),
        }
        if self.random.percent(60) {
            let replica = self.any_replica();
            self.fault_at(moment + 300, 0, InjectedFault::SwitchReplica { node: name.clone(), replica });
        }
        if self.random.percent(30) {
            self.do_at(moment, PlanOperation::Touch { object: pod.clone() });
        }
        self.do_at(5_500, PlanOperation::Read { node: name, object: pod, account: String::new() });
    }

    fn report(&mut self, node: &str, object: &ObjectId, after: u64) {
        self.contents += 1;
        let text = format!("r{}", self.contents);
        let (node, object) = (node.to_owned(), object.clone());
        self.do_at(after, PlanOperation::Report { node, object, text });
    }

    /// Two processes have one identity.
    fn two_identities(&mut self, node: &str) {
        let (name, lasts) = (node.to_owned(), self.random.between(5_000, 200_000));
        self.pod_changes(node);
        let fault = match self.random.below(3) {
            0 => InjectedFault::DuplicateConnection { node: name.clone() },
            _ => InjectedFault::CloneIdentity { node: name.clone() },
        };
        self.fault_at(1_000, lasts, fault);
        let pod = self.pod_of(node);
        self.report(node, &pod, 2_000);
        let replica = self.any_replica();
        self.fault_at(2_500, 0, InjectedFault::SwitchReplica { node: name, replica });
    }

    /// Somebody with a node's certificate breaks the rules, beside its agent.
    fn hostile(&mut self, node: &str) {
        let other = self.any_node();
        let foreign = self.pod_of(&other);
        let secret = ObjectId::new("secrets", &foreign.namespace, &object_name(&mut self.random));
        let content = self.content();
        self.do_at(0, PlanOperation::Put { object: secret.clone(), content });
        for _ in 0..self.random.between(1, 4) {
            let act = match self.random.below(11) {
                0 => HostileAct::FramesOutOfOrder,
                1 => HostileAct::Garbage,
                2 => HostileAct::OversizedFrame { bytes: 5_000_000 },
                3 => HostileAct::ReadObject { object: secret.clone() },
                4 => HostileAct::ReportObject { object: foreign.clone() },
                5 => HostileAct::Subscribe { resource: "secrets".to_owned() },
                6 => HostileAct::FalseAcknowledgement,
                7 => HostileAct::FalseInventory { entries: 3_000 },
                8 => HostileAct::FalseName { name: other.clone() },
                9 => HostileAct::Reconnects { count: 20 },
                _ => HostileAct::ReadsNothing,
            };
            let (moment, lasts, node) = (self.moment(), self.duration(), node.to_owned());
            self.fault_at(moment, lasts, InjectedFault::Hostile { node, act });
        }
        let node = node.to_owned();
        self.do_at(3_000, PlanOperation::Read { node, object: secret, account: String::new() });
    }

    /// Replicas of two versions.
    fn trimming(&mut self, node: &str) {
        let (replica, lasts) = (self.any_replica(), self.random.between(10_000, 100_000));
        let version = u32::try_from(self.random.between(1, 9)).unwrap_or(1);
        self.fault_at(0, lasts, InjectedFault::TrimRules { replica, version });
        self.pod_changes(node);
        let name = node.to_owned();
        self.fault_at(2_000, 0, InjectedFault::SwitchReplica { node: name.clone(), replica });
        let replica = self.any_replica();
        self.fault_at(5_000, 0, InjectedFault::SwitchReplica { node: name, replica });
    }

    /// The Node itself changes: labels by users, its status by the node, seldom its end.
    fn node_object(&mut self, node: &str) {
        let object = ObjectId::node(node);
        let zone = (*self.random.pick(&["a", "b", "c", ""])).to_owned();
        let mut content = self.small_content();
        content.labels.insert("zone".to_owned(), zone);
        let moment = self.moment();
        self.do_at(moment, PlanOperation::Put { object: object.clone(), content });
        self.report(node, &object, moment + 200);
        if self.random.percent(10) && self.size.nodes > 1 {
            self.do_at(moment + 1_000, PlanOperation::Delete { object, grace_seconds: 0 });
        }
    }

    /// Grids come, change and go, and nodes change their unit.
    fn grids(&mut self, node: &str) {
        let namespace = self.any_namespace();
        for plural in ["deploymentgrids", "statefulsetgrids", "servicegrids"] {
            if self.random.percent(30) {
                continue;
            }
            let object = ObjectId::new(&format!("{plural}.superedge.io"), &namespace, "grid");
            let (moment, content) = (self.moment(), self.small_content());
            self.do_at(moment, PlanOperation::Put { object: object.clone(), content });
            if self.random.percent(40) {
                let content = self.small_content();
                self.do_at(moment + 1_500, PlanOperation::Put { object: object.clone(), content });
            }
            if self.random.percent(30) {
                self.do_at(moment + 3_000, PlanOperation::Delete { object, grace_seconds: 0 });
            }
        }
        self.node_object(node);
    }

    /// Very many objects of one kind.
    fn flood(&mut self, node: &str) {
        let namespace = self.any_namespace();
        let resource =
            (*self.random.pick(&["services", "configmaps", "pods", "secrets", "events"])).to_owned();
        let object = ObjectId::new(&resource, &namespace, "flood");
        let count = u32::try_from(self.random.between(20, 300)).unwrap_or(20);
        let mut content = self.small_content();
        if resource == "pods" {
            content.node = node.to_owned();
            content.references = self.references(&namespace, 0);
        }
        self.do_at(500, PlanOperation::Flood { object: object.clone(), count, content });
        self.pod_changes(node);
        self.do_at(6_000, PlanOperation::Ebb { object, count });
        let claim = ObjectId::new("persistentvolumeclaims", &namespace, "claim");
        let content = ObjectContent::default();
        self.do_at(100, PlanOperation::Put { object: claim, content });
        let lease = ObjectId::new("leases.coordination.k8s.io", &namespace, "lock");
        let content = self.small_content();
        self.do_at(200, PlanOperation::Put { object: lease, content });
    }
}
