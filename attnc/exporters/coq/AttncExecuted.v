(* What a module of attnc returns for its stored numbers, and how far that is from the function. *)
From Coq Require Import QArith Qreals Reals List Lra.
Require Attnc AttncRounding AttncEnclosure.
Import ListNotations.
Open Scope R_scope.

Definition executed_anchor (a : Attnc.anchor) : AttncEnclosure.anchor :=
  AttncEnclosure.Anchor (Attnc.slope a) (Attnc.offset a) (Attnc.gate a) (Attnc.value a).
Definition executed_head (h : Attnc.head) : AttncEnclosure.head :=
  AttncEnclosure.Head (Attnc.scale h) (Attnc.shift h) (map executed_anchor (Attnc.anchors h)).

(* y is a possible result of the module for the input s: one head, with the output weight 1 *)
Definition executes (f : AttncRounding.format) (model : list Attnc.head) (s y : R) : Prop :=
  exists h, model = [h] /\ Attnc.output h = 1%Q /\ AttncEnclosure.executes f (executed_head h) s y.

Lemma exact_network : forall h s, Attnc.output h = 1%Q ->
  AttncEnclosure.exact (executed_head h) s = Attnc.network [h] s.
Proof.
  intros h s O; unfold Attnc.network; cbn [Attnc.sum fold_right]; rewrite Rplus_0_r.
  unfold Attnc.attention; cbv zeta; rewrite O, RMicromega.Q2R_1, Rmult_1_l.
  unfold AttncEnclosure.exact, AttncRounding.exact_head, executed_head.
  cbn [AttncEnclosure.q_gain AttncEnclosure.q_offset AttncEnclosure.anchors].
  rewrite !map_map, !AttncRounding.sum_map; f_equal; [|f_equal]; induction (Attnc.anchors h) as [|a l IH];
    simpl; try reflexivity; rewrite IH; reflexivity.
Qed.

(* Exact arithmetic is one of the machines: a theorem about every y with [executes f model s y] is about some y. *)
Theorem exact_executes : forall f h s, Attnc.output h = 1%Q -> Attnc.anchors h <> [] ->
  executes f [h] s (Attnc.network [h] s).
Proof.
  intros f h s O N; exists h; split; [reflexivity|split; [exact O|]]; rewrite <- exact_network by exact O.
  destruct (AttncRounding.machine_format f) as ((U & _) & (T & _) & (E & _)).
  exists (AttncEnclosure.exact (executed_head h) s), (AttncEnclosure.exact (executed_head h) s); split; [|split].
  - apply AttncRounding.exact_runs; try assumption.
    + intros M; apply map_eq_nil in M; cbn [executed_head AttncEnclosure.anchors] in M; apply map_eq_nil in M; contradiction.
    + intros g k K; apply in_map_iff in K; destruct K as (x & <- & X); apply AttncEnclosure.is_zero_ok.
      unfold AttncEnclosure.is_gated in g; apply Bool.negb_false_iff in g; rewrite forallb_forall in g; apply g, X.
  - apply AttncRounding.reads_exact.
  - split; [rewrite Rmult_1_l; apply AttncRounding.rounds_exact; assumption|].
    intros _; rewrite Rmult_1_l, Rminus_diag_eq, Rabs_R0 by reflexivity; exact T.
Qed.

Definition fine := AttncEnclosure.F.PtoP 400.
Definition prec := AttncEnclosure.F.PtoP 64.

(* The rounding of a head on [a, b], by computation *)
Definition rounding_ok (f : AttncRounding.format) (model : list Attnc.head) (a b : Q) (reference pivot : nat) (top bound : Q) : bool :=
  match model with
  | [h] => AttncEnclosure.rounding_ok fine prec f (executed_head h) a b reference pivot top bound 60
  | _ => false
  end.

Theorem rounding : forall f model a b reference pivot top bound, rounding_ok f model a b reference pivot top bound = true ->
  forall s, Q2R a <= s <= Q2R b -> forall y, executes f model s y -> Rabs (y - Attnc.network model s) <= Q2R bound.
Proof.
  intros f model a b reference pivot top bound H s S y (h & -> & O & Y); cbn [rounding_ok] in H.
  rewrite <- exact_network by exact O; exact (AttncEnclosure.rounding_proved _ _ _ _ _ _ _ _ _ _ _ H s y S Y).
Qed.

(* The error of the module, from that of exact arithmetic and that of rounding *)
Lemma both : forall f model (g : R -> R) (r e eps : Q) s y,
  (forall y, executes f model s y -> Rabs (y - Attnc.network model s) <= Q2R r) ->
  Rabs (Attnc.network model s - g s) <= Q2R e -> Qle_bool (e + r) eps = true ->
  executes f model s y -> Rabs (y - g s) <= Q2R eps.
Proof.
  intros f model g r e eps s y R E L Y; apply Qle_bool_imp_le, Qle_Rle in L; rewrite Q2R_plus in L.
  replace (y - g s) with ((y - Attnc.network model s) + (Attnc.network model s - g s)) by ring.
  apply Rle_trans with (1 := Rabs_triang _ _); generalize (R y Y); lra.
Qed.
